-- On whose behalf a token acts: what code defines with it belongs to that name. Null: to the token's own name.

alter table job_tokens add column principal text;

-- Whose code made a definition or a schedule through a hub. Null: a person, or a program that works on the store itself.

alter table jobs add column owner text;
alter table job_schedules add column owner text;
