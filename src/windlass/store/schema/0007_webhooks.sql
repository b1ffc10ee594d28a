-- Whom to tell of changes. `begins` is the place in the journal behind which an endpoint is told; secrets must be readable, since they sign.

create table webhooks (
  id text not null primary key,
  name text not null,
  url text not null,
  jobs text,
  queues text,
  states text not null,
  delays text not null,
  secrets text not null,
  enabled {int} not null,
  reason text,
  failures {int} not null,
  paused_until {int} not null,
  begins text not null,
  rev {int} not null,
  created_at {int} not null,
  updated_at {int} not null,
  mark text
) {clustered};

-- What is told, once for each change and endpoint. `next_at` is when somebody may try, also while somebody does: it is null only at the end.
-- `until` is how long a delivery stays what it is: one that waits is given up then, one that has ended is removed.
create table job_deliveries (
  seq {serial},
  id text not null unique,
  webhook text not null,
  run text not null,
  rev {int} not null,
  type text not null,
  body text not null,
  status text not null,
  tries {int} not null,
  next_at {int},
  token text,
  answer {int},
  error text,
  created_at {int} not null,
  finished_at {int},
  until {int} not null
) {strict};

create unique index job_deliveries_change on job_deliveries (webhook, run, rev);
create index job_deliveries_next on job_deliveries (webhook, next_at, seq) where next_at is not null;
create index job_deliveries_webhook on job_deliveries (webhook, (seq + 0));
create index job_deliveries_status on job_deliveries (webhook, status, (seq + 0));
create index job_deliveries_until on job_deliveries (until);
