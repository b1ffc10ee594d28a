-- How deliveries to an endpoint look, and addresses that runs name. A row with an origin stands for all addresses of that origin which runs name
-- in one format; '' stands for the format itself. It is no endpoint of anybody's: it is created when it is needed, and not listed.

alter table webhooks add column format text not null default 'standard';
alter table webhooks add column origin text;

-- The address of a delivery, if it is not that of its endpoint.
alter table job_deliveries add column url text;
create index job_deliveries_run on job_deliveries (run, (seq + 0));

create table job_notify (
  run {int} not null primary key,
  url text not null,
  format text not null,
  events text
) {clustered};
