package mounts

import (
	"cmp"
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/memory"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/config"
	"github.com/artifactfs/artifactfs/session/agenthook"
)

// memoryChoice is what a command does with the memory of agents.
type memoryChoice struct {
	mode  agenthook.MemoryMode // MemoryUnset: the command changes nothing
	given bool                 // whether the flag is given
	forks bool                 // whether the new session is a fork
}

// CompleteMemory finds out what is done with the memory of agents, from the flag or the user's configuration. The flag
// also permits to place conversations that others may have made. The caller must call CarryMemory after the mount.
func (o *MountOptions) CompleteMemory(cmd *cobra.Command) error {
	r := &o.Request
	noSession := r.ReadOnly || r.SessionOptions.Remote == control.RemoteNone
	if o.memory.given = cmd.Flags().Changed("agent-memory"); !o.memory.given {
		file, err := config.Read(config.UserFile())
		if err != nil {
			return &control.Error{Code: control.ExitUsage, Verb: "mount", Cause: err.Error(),
				Hint: `the file may contain agent_memory = true`}
		}
		if file.AgentMemory && !noSession {
			o.memory.mode = agenthook.MemoryKeep
		}
	} else if o.agentMemory && noSession {
		return cli.Usage(cmd, errors.New("--agent-memory needs a session: --read-only and --session-remote none exclude it"))
	} else if o.agentMemory {
		o.memory.mode = agenthook.MemoryPlace
	} else if !noSession {
		o.memory.mode = agenthook.MemoryOff
	}
	o.waitForMemory()
	return nil
}

// waitForMemory makes the mount wait for git, because the git directory has the state of the memory.
func (o *MountOptions) waitForMemory() {
	if o.memory.mode != agenthook.MemoryUnset && o.Request.Wait == control.WaitTree {
		o.Request.Wait = control.WaitGit
	}
}

// InheritMemory makes a fork do the same as its parent with the memory of agents, unless the flag is given. The parent
// session is mounted at dir; dir is "" if it is not mounted on this host.
func (o *MountOptions) InheritMemory(ctx context.Context, dir string) {
	o.memory.forks = true
	r := o.Request
	if o.memory.given || r.ReadOnly || r.SessionOptions.Remote == control.RemoteNone || dir == "" {
		return
	}
	o.memory.mode = cmp.Or(memory.ModeAt(ctx, dir), o.memory.mode)
	o.waitForMemory()
}

// CarryMemory makes the hooks of agents in a new mount keep the memory of agents, if the user has asked for it, or not.
// It adds the conversations that it has placed to the reply.
func (o *MountOptions) CarryMemory(ctx context.Context, a *cli.App, m *control.MountReply) (err error) {
	if o.memory.mode == agenthook.MemoryUnset || m.Session == "" {
		return nil
	}
	mode, isNew := o.memory.mode, !m.Resumed && !o.memory.forks
	if mode == agenthook.MemoryKeep && isNew {
		mode = agenthook.MemoryPlace // nobody else has made the session
	}
	if m.Memory, err = memory.Carry(ctx, a, m.Dir, mode, o.memory.given, isNew || !o.memory.given); err != nil {
		return cli.Failure("keep the memory of agents in", m.Dir, err)
	}
	if len(m.Memory) == 0 && isNew {
		m.Memory = nil // a new session has none, so do not mention it
	}
	return nil
}
