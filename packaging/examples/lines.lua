-- Asks a model in this directory and prints its answer as it comes: nvim -l lines.lua 'What is in this directory?'
-- One message a line over Neovim's event loop: as little as a plugin needs.
local directory = vim.env.XDG_RUNTIME_DIR or vim.fs.joinpath(vim.env.HOME, '.local/state')
local path = vim.env.KLI_SOCKET or vim.fs.joinpath(directory, 'kli/kli.sock')
local pipe = assert(vim.uv.new_pipe())
local waiting, last_id, rest, ended = {}, 0, '', nil

--- Calls a method; `follow` gets its result.
local function call(method, params, follow)
  last_id = last_id + 1
  waiting[last_id] = follow or function() end
  pipe:write(vim.json.encode({ jsonrpc = '2.0', id = last_id, method = method, params = params }) .. '\n')
end

local function receive(message)
  if message.error then
    ended = message.error.message
  elseif message.method == 'sessionEvent' then
    local event = message.params.result
    if event.type == 'textDelta' then
      io.stdout:write(event.delta)
      io.stdout:flush()
    elseif event.type == 'runEnd' then
      ended = event.stopReason
    end
  elseif message.id then
    waiting[message.id](message.result)
    waiting[message.id] = nil
  end
end

pipe:connect(path, function(failure)
  if failure then
    ended = failure
    return
  end
  pipe:read_start(function(broken, piece)
    if broken or not piece then
      ended = ended or 'a closed connection'
      return
    end
    rest = rest .. piece
    local first = 1
    for line, after in rest:gmatch('([^\n]*)\n()') do
      receive(vim.json.decode(line))
      first = after
    end
    rest = rest:sub(first)
  end)
  call('createSession', { workDir = vim.uv.cwd() }, function(session)
    local id = session.sessionId
    -- Subscribed before the prompt is sent, so that nothing of the answer is missed.
    call('subscribe', { sessionId = id })
    -- Nobody is here to be asked: calls that need a person are refused, and the answer says so.
    call('prompt', { sessionId = id, text = arg[1], approvals = 'deny' })
  end)
end)

vim.wait(10 * 60 * 1000, function()
  return ended ~= nil
end, 10)
pipe:close()
io.stdout:write('\n')
if ended ~= 'done' then
  io.stderr:write(('the run ended with %s\n'):format(ended or 'nothing in ten minutes'))
  os.exit(1)
end
