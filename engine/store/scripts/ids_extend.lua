-- Let the time of ids begin later: those of timers that were moved. Repeating it changes nothing.
-- KEYS: state, prefix of the buckets   ARGV: ttl ms, then of each id its hash, its packed value, and the second in which its time begins
ids_open_buckets(KEYS[1], KEYS[2], tonumber(ARGV[1]))
for at = 2, #ARGV, 3 do
  local id, value, second = ARGV[at], ARGV[at + 1], math.max(ids_now_s, tonumber(ARGV[at + 2]))
  local found = redis.call('HGET', ids_bucket(id), id)
  if found and ids_live(found) and string.sub(found, 5) == value then
    redis.call('HSET', ids_bucket(id), id, ids_stamp_of(second) .. value)
  end
end
return {'OK'}
