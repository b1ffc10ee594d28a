-- What nobody uses any more is removed. `used_at`: when a lane was last used, to the day; 0: it is removed unless it is used meanwhile;
-- null: not noted yet. `owner`: whose small token has made it.

alter table job_lanes add column used_at {int};
alter table job_lanes add column owner text;
create index job_lanes_used on job_lanes (used_at);

-- `named`: 1 for a resource that a job has named and nobody has set.
alter table job_resources add column named {int} not null default 0;
alter table job_resources add column owner text;

-- Raised whenever lanes are removed, or about to be: processes read all of them again.
alter table job_controls add column removed {int} not null default 0;

create index jobs_undefined on jobs (created_at) where handler is null;
