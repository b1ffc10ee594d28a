-- What the code of a worker accepts: a fingerprint of the parameters of each of its jobs, JSON text. Null: it has not told.

alter table workers add column schemas text;
