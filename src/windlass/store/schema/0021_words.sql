-- Columns are called what the field calls them. To rename one touches no row; only what is kept as JSON text is written again.

alter table job_runs rename column burnt to failures;
alter table job_runs rename column returns to requeues;
alter table job_runs rename column band to priority_key;
alter table job_runs rename column aged to aging_priority;
alter table job_runs rename column look_at to lease_check_at;
alter table job_queues rename column ageing to aging;
alter table job_schedules rename column most to max_missed;
alter table job_schedules rename column said to code_hash;
alter table job_tokens rename column lasts to ttl;
alter table job_audit rename column who to actor;
alter table job_pauses rename column who to actor;
alter table job_slots rename column who to actor;
alter table store_settings rename column who to actor;
alter table job_followers rename to job_consumers;
alter table job_gates rename to job_limiters;

update job_runs set policy = replace(replace(replace(policy, '"ageing":', '"aging":'), '"exhausted":', '"on_exhausted":'), '"max_returns":', '"max_requeues":')
where policy like '%"ageing":%' or policy like '%"exhausted":%' or policy like '%"max_returns":%';
update jobs set options = replace(replace(options, '"exhausted":', '"on_exhausted":'), '"max_returns":', '"max_requeues":')
where options like '%"exhausted":%' or options like '%"max_returns":%';
update job_schedules set options = replace(replace(options, '"exhausted":', '"on_exhausted":'), '"max_returns":', '"max_requeues":')
where options like '%"exhausted":%' or options like '%"max_returns":%';
