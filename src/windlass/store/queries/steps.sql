-- The first result of a key stays. The run is locked before, so that no two steps of it get the same number.
-- name: add_step
insert into job_steps (run, n, key, output, at)
select j.seq, s.n, :key, :output, :now
from job_runs j, (select coalesce(max(n), 0) + 1 as n from job_steps where run = :seq) as s
where j.seq = :seq and j.token = :token and j.state in ({live}) and s.n <= :limit
on conflict (run, key) do nothing

-- name: step
select key, output, at, n from job_steps where run = :seq and key = :key

-- name: steps
select key, output, at, n from job_steps where run = :seq and n > :after order by n limit :count

-- name: prune_steps
delete from job_steps where run {in: ids}
