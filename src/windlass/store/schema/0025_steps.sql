-- The results of the steps that a run has completed, in their order. Written only while the run is live, and removed with it.

create table job_steps (
  run {int} not null,
  n {int} not null,
  key text not null,
  output text not null,
  at {int} not null,
  primary key (run, n)
) {clustered};

create unique index job_steps_key on job_steps (run, key);
