-- What decides who is next: pauses, queues that age, resources, what occupies them, and the reservations of direct calls.

-- One row at most. Its revision is raised with every change of pauses, queues and resources, so that processes know when to read them again.
create table job_controls (
  id {int} not null primary key,
  rev {int} not null
) {strict};

create table job_pauses (
  scope text not null,
  name text not null,
  at {int} not null,
  reason text,
  who text,
  primary key (scope, name)
) {clustered};

-- `ageing` is how many milliseconds of waiting one step of priority is worth.
create table job_queues (
  name text not null primary key,
  ageing {int} not null
) {clustered};

-- A capacity of null is no limit. `rates` is JSON text that SQL does not open.
create table job_resources (
  name text not null primary key,
  capacity {int},
  rates text not null,
  max_wait {int} not null,
  created_at {int} not null,
  updated_at {int} not null
) {clustered};

-- The row that stands for all who use a resource, or a resource under one key: locked before they are counted. `wake_at` is
-- when time lets the next one in.
create table job_gates (
  key text not null primary key,
  resource text not null,
  wake_at {int},
  used_at {int} not null
) {clustered};

create index job_gates_wake on job_gates (wake_at) where wake_at is not null;

-- What a run occupies. It counts only while the run is live under this very token, so that a row left behind holds nothing up.
create table job_holds (
  key text not null,
  run {int} not null references job_runs (seq),
  token text not null,
  weight {int} not null,
  primary key (key, run)
) {clustered};

create index job_holds_run on job_holds (run);

-- When a rate's bucket is full again, in microseconds, one row for each of the rates of a resource.
create table job_rates (
  key text not null,
  n {int} not null,
  tat {int} not null,
  primary key (key, n)
) {clustered};

-- Those who call directly: served in the order of `seq`, before the queue. All of them count as occupying what they asked for.
create table job_slots (
  seq {serial},
  id text not null unique,
  key text not null,
  token text not null,
  weight {int} not null,
  state text not null,
  who text,
  lease {int} not null,
  lease_until {int} not null,
  created_at {int} not null,
  held_at {int}
) {strict};

create index job_slots_key on job_slots (key, seq);

-- `keys`: under which keys it uses the resources that its lane limits by key, JSON text. `parked`: the gate that keeps it out of
-- its lane, whose number is negative meanwhile, so that no claim reads over it. `aged`: its priority where the queue ages.
alter table job_runs add column keys text;
alter table job_runs add column parked text;
alter table job_runs add column aged {int};
alter table job_runs add column grouped {int};

create index job_runs_parked on job_runs (parked, lane, band, position, seq) where parked is not null;
create index job_runs_grouped on job_runs (grouped, seq) where grouped is not null;
