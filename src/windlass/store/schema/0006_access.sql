-- Tokens are kept as hashes: who reads this table can do nothing with it.

create table tokens (
  id text not null primary key,
  name text not null,
  hash text not null unique,
  scopes text not null,
  worker text,
  created_at {int} not null,
  expires_at {int},
  revoked_at {int},
  used_at {int}
) {clustered};

-- What people did, in the batch that did it.
create table audit (
  id {serial},
  at {int} not null,
  who text not null,
  what text not null,
  subject text not null
) {strict};
