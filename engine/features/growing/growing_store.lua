-- Append chunks to messages that grow. A chunk at an offset that is stored already is cut; one behind a hole is not stored.
-- Progress of an edge that has less text than storage is old: its publisher has gone on at another edge. It is dropped.
-- KEYS: due times of the server, then a growth for each chunk
-- ARGV: due time in ms, then for each chunk: generation, offset, chunk, progress ('' for the one that is there), member of the due times
--       ('' leaves its due time)
-- Returns {'OK', what became of each: the size that is stored, -1: it is gone or has ended, -2: another writer has begun it anew}.
local found = {'OK'}
for at = 2, #KEYS do
  local first = (at - 2) * 5 + 2
  local known = redis.call('HMGET', KEYS[at], 'generation', 'size', 'reason', 'ended')
  if not known[1] or known[3] or known[4] then
    found[at] = -1
  elseif known[1] ~= ARGV[first] then
    found[at] = -2
  else
    local size, offset, chunk = tonumber(known[2]), tonumber(ARGV[first + 1]), ARGV[first + 2]
    local is_newest = offset + #chunk >= size
    if offset <= size and offset + #chunk > size then
      local fresh = string.sub(chunk, size - offset + 1)
      redis.call('HSET', KEYS[at], 'c' .. known[2], fresh, 'size', size + #fresh)
      size = size + #fresh
    end
    if ARGV[first + 3] ~= '' and is_newest then
      redis.call('HSET', KEYS[at], 'progress', ARGV[first + 3])
    end
    if ARGV[first + 4] ~= '' then
      redis.call('ZADD', KEYS[1], ARGV[1], ARGV[first + 4])
    end
    found[at] = size
  end
end
return found
