-- Store what a member answers, unless this member has answered, or the question has its answer.
-- KEYS: questions of the topic, answers of members to this one, answers to the questions
-- ARGV: id, user, the answer, members at most
-- Returns {'OK', {user, answer, user, answer, ...}}: of all members, without this one when it came too late;
-- {'NONE'}: there is no such question; {'FULL'}.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return {'NONE'}
end
if redis.call('HEXISTS', KEYS[2], ARGV[2]) == 0 and redis.call('HEXISTS', KEYS[3], ARGV[1]) == 0 then
  if redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[4]) then
    return {'FULL'}
  end
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
end
return {'OK', redis.call('HGETALL', KEYS[2])}
