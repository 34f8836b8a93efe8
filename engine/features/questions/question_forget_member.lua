-- Forget what a member has answered to a question of a topic.
-- KEYS: answers to questions of the topic, answers of members to this one
-- ARGV: id, user, the answer that names the user ('' for none), the same without the user
-- Returns {'OK'}.
redis.call('HDEL', KEYS[2], ARGV[2])
if ARGV[3] ~= '' and redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[3] then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[4])
end
return {'OK'}
