-- Forget a question whose request was refused, unless another request has asked it, or it is another question by now.
-- KEYS: questions of the user, answers to them, answers of members to this one, due times of the server
-- ARGV: id, the question as the request stored it, member of the due times
-- Returns {'OK'}.
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
  redis.call('DEL', KEYS[3])
  redis.call('ZREM', KEYS[4], ARGV[3])
end
return {'OK'}
