-- Append the action of a fired timer to the stream of its target, once. For any caller; repeating it changes nothing.
-- KEYS: effect of the timer, stream, set of targets
-- ARGV: value of the effect, seconds to keep it, entries at most, target, then field, value... of the entry
-- Returns {'OK'}: the stream has it, or had it; {'FULL'}: nothing was written.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return {'OK'}
end
if redis.call('XLEN', KEYS[2]) >= tonumber(ARGV[3]) then
  return {'FULL'}
end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
redis.call('SADD', KEYS[3], ARGV[4])
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 5))
return {'OK'}
