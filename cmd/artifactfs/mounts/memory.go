package mounts

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/memory"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/config"
)

// completeMemory reads from the user's configuration whether the memory of agents is kept, if the flag is not given.
func (o *MountOptions) completeMemory(cmd *cobra.Command) error {
	r := &o.Request
	noSession := r.ReadOnly || r.SessionOptions.Remote == control.RemoteNone
	if !cmd.Flags().Changed("agent-memory") {
		file, err := config.Read(config.UserFile())
		if err != nil {
			return &control.Error{Code: control.ExitUsage, Verb: "mount", Cause: err.Error(),
				Hint: `the file may contain agent_memory = true`}
		}
		o.agentMemory = file.AgentMemory && !noSession
	} else if o.agentMemory && noSession {
		return cli.Usage(cmd, errors.New("--agent-memory needs a session: --read-only and --session-remote none exclude it"))
	}
	o.waitForMemory()
	return nil
}

// waitForMemory makes the mount wait for git, because the git directory has the state of the memory.
func (o *MountOptions) waitForMemory() {
	if o.agentMemory && o.Request.Wait == control.WaitTree {
		o.Request.Wait = control.WaitGit
	}
}

// InheritMemory makes a fork keep the memory of agents if the parent session is mounted at dir and keeps it. dir is ""
// if it is not mounted on this host.
func (o *MountOptions) InheritMemory(ctx context.Context, dir string) {
	o.forks = true
	o.agentMemory = o.agentMemory || !o.Request.ReadOnly && dir != "" && memory.IsKept(ctx, dir)
	o.waitForMemory()
}

// CarryMemory makes the hooks of agents in a new mount keep the memory of agents, if the user has asked for it. It
// places the conversations that the session has, and adds them to the reply.
func (o *MountOptions) CarryMemory(ctx context.Context, a *cli.App, m *control.MountReply) (err error) {
	if !o.agentMemory || m.Session == "" {
		return nil
	}
	if m.Memory, err = memory.Carry(ctx, a, m.Dir); err != nil {
		return cli.Failure("keep the memory of agents in", m.Dir, err)
	}
	if len(m.Memory) == 0 && !m.Resumed && !o.forks {
		m.Memory = nil // a new session has none, so do not mention it
	}
	return nil
}
