-- Take what is due, the longest due first. Who has not done its work by the end of the lease has died: it is due again.
-- KEYS: due times of the server
-- ARGV: now in ms, end of the lease in ms, so many at most
-- Returns {'OK', member, member, ...}.
local taken = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])
for _, member in ipairs(taken) do
  redis.call('ZADD', KEYS[1], ARGV[2], member)
end
return {'OK', unpack(taken)}
