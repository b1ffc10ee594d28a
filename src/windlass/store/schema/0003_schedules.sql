-- Schedules: rules that make runs. `next_at` is null when there is nothing to wait for, so the index holds only what can fire.

create table job_schedules (
  id {serial},
  key text not null unique,
  job text not null,
  kind text not null,
  expr text not null,
  zone text not null,
  anchor {int} not null,
  payload text not null,
  options text not null,
  missed text not null,
  most {int} not null,
  max_age {int},
  overlap text not null,
  jitter {int} not null,
  enabled {int} not null,
  said text,
  next_at {int},
  last_at {int},
  last_run text,
  fired {int} not null default 0,
  skipped {int} not null default 0,
  rev {int} not null,
  created_at {int} not null,
  updated_at {int} not null,
  mark text
) {strict};

create index job_schedules_next on job_schedules (next_at, created_at, id) where next_at is not null;

-- What was due and did not become a run, with the reason: due = fired + skipped.
create table job_skips (
  id {serial},
  schedule {int} not null references job_schedules (id),
  first_at {int} not null,
  last_at {int} not null,
  number {int} not null,
  reason text not null,
  at {int} not null
) {strict};

create index job_skips_schedule on job_skips (schedule, id);

alter table job_runs add column schedule {int};

create index job_runs_schedule on job_runs (schedule, finished_at, seq) where schedule is not null;
