-- Store what a member answers, unless this member has answered.
-- KEYS: questions of the topic, answers of members to this one
-- ARGV: id, user, the answer, members at most
-- Returns {'OK', {user, answer, user, answer, ...}}: of all members; {'NONE'}: there is no such question; {'FULL'}.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return {'NONE'}
end
if redis.call('HEXISTS', KEYS[2], ARGV[2]) == 0 then
  if redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[4]) then
    return {'FULL'}
  end
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
end
return {'OK', redis.call('HGETALL', KEYS[2])}
