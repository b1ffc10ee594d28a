-- Jobs, lanes, runs, and what is remembered of them. Times are integer milliseconds UTC; JSON is text that SQL does not open.

create table schema_version (
  version {int} not null primary key,
  applied_at {int} not null
) {strict};

create table jobs (
  id {serial},
  name text not null unique,
  handler text,
  payload text not null,
  options text not null,
  rev {int} not null,
  created_at {int} not null,
  updated_at {int} not null
) {strict};

create table job_lanes (
  id {serial},
  queue text not null,
  job text not null,
  requires text not null,
  unique (queue, job, requires)
) {strict};

-- No index contains a column that a beat writes (lease_until), and no index test on SQLite is more than one column.
create table job_runs (
  seq {serial},
  id text not null,
  rev {int} not null,
  state text not null,
  job text not null,
  queue text not null,
  lane {int} not null,
  band {int} not null,
  position {int} not null,
  payload text not null,
  due_at {int} not null,
  created_at {int} not null,
  max_attempts {int} not null,
  max_runtime {int},
  policy text,
  attempt {int} not null default 1,
  attempt_id text,
  retry_of text,
  burnt {int} not null default 0,
  returns {int} not null default 0,
  token text,
  worker text,
  slot {int},
  lease {int},
  claimed_at {int},
  started_at {int},
  lease_until {int},
  look_at {int},
  cancel_asked_at {int},
  finished_at {int},
  reason text,
  error text,
  output text,
  output_hash text,
  mark text
) {strict};

create unique index job_runs_id on job_runs (id);
create unique index job_runs_attempt on job_runs (attempt_id) where attempt_id is not null;
create unique index job_runs_slot on job_runs (worker, slot) where slot is not null;
create index job_runs_ready on job_runs (lane, band, position, seq) where state = 'queued';
create index job_runs_due on job_runs (due_at, seq) where state = 'scheduled';
create index job_runs_waiting on job_runs (seq) where state = 'waiting';
create index job_runs_look on job_runs (look_at, seq) where look_at is not null;
-- `+ 0` makes this the only index for the list of a job, and no way to a single run, whatever PostgreSQL thinks of the sizes.
create index job_runs_job on job_runs (job, (seq + 0));
create index job_runs_ended on job_runs (state, finished_at, seq) where finished_at is not null;
create index job_runs_job_ended on job_runs (job, state, finished_at, seq) where finished_at is not null;

-- What was claimed leaves a dead entry at the head of the ready index, where every claim begins: there must never be many.
{vacuum_often: job_runs}

create table job_waits (
  run {int} not null references job_runs (seq),
  predecessor {int} not null references job_runs (seq),
  rule text not null,
  primary key (run, predecessor)
) {clustered};

create index job_waits_predecessor on job_waits (predecessor);

create table job_attempts (
  run {int} not null references job_runs (seq),
  n {int} not null,
  id text not null unique,
  retry_of text,
  outcome text not null,
  answer text not null,
  worker text,
  token text,
  claimed_at {int},
  started_at {int},
  finished_at {int} not null,
  error text,
  primary key (run, n)
) {strict};

create table job_journal (
  entry {serial},
  run {int} not null,
  rev {int} not null,
  at {int} not null,
  move text not null,
  state text not null,
  attempt {int} not null,
  worker text,
  detail text
  {xid}
) {strict};

create unique index job_journal_run on job_journal (run, rev);
{xid_index}

create table job_logs (
  run {int} not null references job_runs (seq),
  attempt {int} not null,
  n {int} not null,
  at {int} not null,
  text text not null,
  primary key (run, attempt, n)
) {clustered};

-- Keys outlive the runs they name: `run` is a public id.
create table job_keys (
  scope text not null,
  key text not null,
  run text not null,
  hash text,
  unfinished {int} not null,
  until {int},
  primary key (scope, key)
) {clustered};

create index job_keys_run on job_keys (run);
create index job_keys_until on job_keys (until) where until is not null;

create table workers (
  name text not null primary key,
  queues text,
  jobs text,
  tags text not null,
  cores {int} not null,
  memory {int} not null,
  slots {int} not null,
  registered_at {int} not null,
  seen_at {int} not null
) {clustered};

create view job_locks as
  select id as job_run_id, lease_until, worker, token from job_runs where look_at is not null;
