-- After a checkpoint: advance the mark, and trim the groups that it contains.
-- KEYS: epoch, journal, mark, slot marks...   ARGV: epoch, number of the checkpoint, lowest mark expected, first group to keep (0: trim
--   nothing), then for each slot mark its epoch and the lowest value expected
-- mark is "<epoch>-<number>" of the last checkpoint.
local mark = redis.call('GET', KEYS[3]) or ''
local last = tonumber(string.match(mark, '^' .. ARGV[1] .. '%-(%d+)$') or '-1')
if last < tonumber(ARGV[3]) then
  return {'LOST', 'the last checkpoint', mark}
end
for i = 4, #KEYS do
  local epoch_at = 2 * i - 3
  -- A replica without these pages may have been promoted since they were written: then only the journal has their content, and they are
  -- written again.
  local found = redis.call('GET', KEYS[i]) or ''
  if tonumber(string.match(found, '^' .. ARGV[epoch_at] .. '%-(%d+)$') or '-1') < tonumber(ARGV[epoch_at + 1]) then
    return {'BEHIND', 'pages of this checkpoint'}
  end
end
if ARGV[4] ~= '0' then
  redis.call('XTRIM', KEYS[2], 'MINID', ARGV[1] .. '-' .. ARGV[4])
end
if last < tonumber(ARGV[2]) then
  redis.call('SET', KEYS[3], ARGV[1] .. '-' .. ARGV[2])
end
return {'OK'}
