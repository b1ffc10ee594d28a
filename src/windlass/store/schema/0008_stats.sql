-- What workers tell of themselves, and how much there was: by minute, and from the beginning. All of it is counted from the journal.

alter table workers add column about text;
alter table workers add column metrics text;
alter table workers add column metrics_at {int};

-- The queue that a run left with an entry, where it did: so the queue of every earlier entry is known too.
alter table job_journal add column left_queue text;
create index job_journal_left on job_journal (run, rev) where left_queue is not null;

create table job_minutes (
  minute {int} not null,
  queue text not null,
  job text not null,
  created {int} not null,
  started {int} not null,
  succeeded {int} not null,
  failed {int} not null,
  quarantined {int} not null,
  cancelled {int} not null,
  skipped {int} not null,
  attempts {int} not null,
  retried {int} not null,
  returned {int} not null,
  lapsed {int} not null,
  waited {int} not null,
  ran {int} not null,
  primary key (minute, queue, job)
) {clustered};

-- As many rows as there are lanes at most: states that are left again say how many runs are in them, the others how many ever were.
create table job_totals (
  queue text not null,
  job text not null,
  since {int} not null,
  waiting {int} not null,
  scheduled {int} not null,
  queued {int} not null,
  claimed {int} not null,
  running {int} not null,
  cancelling {int} not null,
  created {int} not null,
  started {int} not null,
  succeeded {int} not null,
  failed {int} not null,
  quarantined {int} not null,
  cancelled {int} not null,
  skipped {int} not null,
  attempts {int} not null,
  retried {int} not null,
  returned {int} not null,
  lapsed {int} not null,
  waited {int} not null,
  ran {int} not null,
  primary key (queue, job)
) {clustered};
