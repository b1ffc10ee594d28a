-- How far those who follow the journal have read it, so that any process can go on from there.

create table job_followers (
  name text not null primary key,
  cursor text not null,
  rev {int} not null,
  at {int} not null
) {clustered};
