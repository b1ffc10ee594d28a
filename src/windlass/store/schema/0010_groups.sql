-- Runs that start and finish together by rule. The members name their group in `job_runs.grouped`. What has ended is counted here,
-- in the batch that ends it, so that the last one is known without looking at the others. `callback` is a run's public id.

create table job_groups (
  seq {serial},
  id text not null unique,
  name text,
  kind text not null,
  on_failure text not null,
  total {int} not null,
  succeeded {int} not null default 0,
  failed {int} not null default 0,
  cancelled {int} not null default 0,
  status text not null,
  callback text,
  created_at {int} not null,
  finished_at {int},
  reason text,
  retry_of text
) {strict};

-- `+ 0` makes this an index for lists only, and no way to a single group, whatever PostgreSQL thinks of the sizes.
create index job_groups_status on job_groups (status, (seq + 0));
create index job_groups_callback on job_groups (callback) where callback is not null;
