-- Runs that were made to wait inside a caller's transaction, which locks no run that they wait for: whether their wait is over already
-- is settled by a sweep, after the caller's commit.
create table job_checks (
  run {int} not null primary key
) {clustered};
