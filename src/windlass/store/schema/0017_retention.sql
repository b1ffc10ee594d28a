-- How long ended runs are kept. `keep` is a run's own number of milliseconds from its end; null: what is set for all.

alter table job_runs add column keep {int};

-- Runs with a time of their own have a part of the index for themselves, so that removing the others never reads over them.
drop index job_runs_ended;
create index job_runs_ended on job_runs (state, (case when keep is null then 0 else 1 end), finished_at, seq) where finished_at is not null;
create index job_runs_keep on job_runs ((finished_at + keep), seq) where keep is not null;

-- PostgreSQL asked three times for each run that was removed whether anything still belongs to it, which took longer than all the rest. The same batch
-- removes what does, and it is only ever written while a run is live.
{unreferenced: job_attempts}
{unreferenced: job_logs}
{unreferenced: job_holds}

-- What holds for every process on this store, whatever its own file says. `who` is who set it; null: the first process that named it.
create table store_settings (
  name text not null primary key,
  value {int} not null,
  who text,
  at {int} not null
) {clustered};

-- What one process at a time does: whose turn it is, and until when unless it is renewed.
create table store_turns (
  name text not null primary key,
  token text not null,
  until {int} not null
) {clustered};
