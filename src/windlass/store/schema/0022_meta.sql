-- What a creation says of its run, which never changes; and the name that the worker gave the output.

alter table job_runs add column meta text;
alter table job_runs add column output_key text;

-- The payload that an attempt ran with, if the run was patched since; null: the run's.
alter table job_attempts add column payload text;
