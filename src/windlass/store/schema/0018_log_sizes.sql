-- How many bytes an attempt had logged with this line: what bounds its log as a whole.

alter table job_logs add column size {int} not null default 0;
