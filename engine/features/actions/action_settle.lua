-- Remove an action that was carried out, or move it to the dead letters. For any caller; repeating it changes nothing.
-- KEYS: stream, dead letters   ARGV: group, id of the entry, then field, value... of the dead letter; none: it is done
-- Returns {'OK', 1, or 0 when it was settled or erased before}.
if #redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2]) == 0 then
  redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
  return {'OK', 0}
end
if #ARGV > 2 then
  redis.call('XADD', KEYS[2], '*', unpack(ARGV, 3))  -- first: a full memory refuses it only before another write
end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
return {'OK', 1}
