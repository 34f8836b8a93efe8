-- Append a batch of outcomes. Not idempotent: a repeat makes the same rows, which are stored once.
-- KEYS: stream, state   ARGV: bytes at most, source, first number, outcomes, batch
-- Returns {'OK'} or {'FULL'}: the batch is dropped and counted.
-- `bytes` and `waiting` are of what is not settled; the limit is for these. The next batch tells by `l` how many were dropped before it.
local size = #ARGV[5] + 100
local bytes = 0
if redis.call('XLEN', KEYS[1]) > 0 then bytes = tonumber(redis.call('HGET', KEYS[2], 'bytes') or '0') end
if bytes + size > tonumber(ARGV[1]) then
  redis.call('HINCRBY', KEYS[2], 'dropped', ARGV[4])
  redis.call('HINCRBY', KEYS[2], 'untold', ARGV[4])
  return {'FULL'}
end
if bytes == 0 then redis.call('HDEL', KEYS[2], 'waiting') end
redis.call('HSET', KEYS[2], 'bytes', bytes + size)
redis.call('HINCRBY', KEYS[2], 'waiting', ARGV[4])
local untold = redis.call('HGET', KEYS[2], 'untold')
if untold then
  redis.call('HDEL', KEYS[2], 'untold')
  redis.call('XADD', KEYS[1], '*', 's', ARGV[2], 'n', ARGV[3], 'c', ARGV[4], 'b', ARGV[5], 'l', untold)
else
  redis.call('XADD', KEYS[1], '*', 's', ARGV[2], 'n', ARGV[3], 'c', ARGV[4], 'b', ARGV[5])
end
return {'OK'}
