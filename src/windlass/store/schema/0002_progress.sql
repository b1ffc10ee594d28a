-- What a handler said last of how far it is: JSON text that SQL does not open. A beat writes it, so no index contains it.

alter table job_runs add column progress text;
