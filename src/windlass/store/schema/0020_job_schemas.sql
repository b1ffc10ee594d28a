-- What a job takes. `schema`: the fingerprint of the JSON Schema of its arguments, as its last definer told it; null: it told none.

alter table jobs add column schema text;

-- The documents themselves, one for each version of the code that was told. A fingerprint is the hash of its document.
create table job_schemas (
  job text not null,
  schema text not null,
  document text not null,
  told_at {int} not null,
  primary key (job, schema)
) {strict};
