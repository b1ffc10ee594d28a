-- The instant that a run of a schedule stands for. It never changes, unlike `due_at`, which jitter, retries and snoozes move.

alter table job_runs add column instant {int};
