-- Forget a target without actions. For any caller; repeating it changes nothing.
-- KEYS: stream, set of targets   ARGV: target   Returns {'OK'}.
if redis.call('XLEN', KEYS[1]) == 0 then
  redis.call('DEL', KEYS[1])
  redis.call('SREM', KEYS[2], ARGV[1])
end
return {'OK'}
