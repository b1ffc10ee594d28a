-- Tokens are kept as hashes: who reads this table cannot use one. `kind` is a token, the session of somebody who signed in, or an
-- invitation to sign in, which becomes a session when it is used.

create table job_tokens (
  id text not null primary key,
  name text not null,
  hash text not null unique,
  scopes text not null,
  worker text,
  kind text not null,
  created_at {int} not null,
  lasts {int},
  expires_at {int},
  revoked_at {int},
  used_at {int}
) {clustered};

-- What people did, in the batch that did it.
create table job_audit (
  id {serial},
  at {int} not null,
  who text not null,
  what text not null,
  subject text not null
) {strict};

create index job_audit_at on job_audit (at);
