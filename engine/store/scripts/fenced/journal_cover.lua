-- After a checkpoint: trim the groups that it contains from the journal of one slot.
-- KEYS: epoch, journal, mark   ARGV: epoch, first group to keep (0: trim nothing), lowest mark expected: of confirmed writes, of all
-- mark is "<epoch>-<number>" of the last write to the slot's pages.
local mark = redis.call('GET', KEYS[3]) or ''
local last = tonumber(string.match(mark, '^' .. ARGV[1] .. '%-(%d+)$') or '-1')
if last < tonumber(ARGV[3]) then
  return {'LOST', 'the last checkpoint', mark}
elseif last < tonumber(ARGV[4]) then
  -- A replica without these pages may have been promoted since they were written: then only the journal has their content, and they are
  -- written again.
  return {'BEHIND', 'pages of this checkpoint'}
end
if ARGV[2] ~= '0' then
  redis.call('XTRIM', KEYS[2], 'MINID', ARGV[1] .. '-' .. ARGV[2])
end
return {'OK'}
