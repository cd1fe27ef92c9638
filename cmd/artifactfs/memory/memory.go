// Package memory stores the memory of coding agents in a session, and places it for the agents of another host. An
// agent keeps its conversations in the files of its memory.
package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session/agenthook"
)

// eventTime is the time for which one event stores the memory of an agent. The next event continues.
const eventTime = 2 * time.Second

// Send stores what the agent has added to its files, if the event is the end of a part of its work, and if the
// user has asked for it.
//
// The mount m is one of all mounts.
func Send(ctx context.Context, all []cli.Served, m cli.Served, gitDir string, e agenthook.Event) error {
	switch e.Kind {
	case agenthook.TurnEnd, agenthook.SubEnd, agenthook.Compact, agenthook.SessionEnd:
	default:
		return nil
	}
	if gitDir == "" {
		return nil // an earlier step has reported it
	}
	end := time.Now().Add(eventTime)
	late := func() bool { return ctx.Err() != nil || time.Now().After(end) }
	err := agenthook.SendMemory(gitDir, m.Dir, insideOf(m, all), e, late, func(lines []string) error {
		_, err := m.Client.SessionRecord(ctx, control.SessionRecordRequest{Dir: m.Dir, Lines: lines, Memory: true})
		return err
	})
	if err != nil {
		return cli.Failure("store the memory of "+string(e.Agent)+" in", m.Dir, err)
	}
	return nil
}

// insideOf returns a function that reports whether a directory is in the mount m, and in no other one of all mounts.
func insideOf(m cli.Served, all []cli.Served) func(dir string) bool {
	return func(dir string) bool {
		found, err := cli.Find(all, nil, "find", dir)
		return err == nil && found.Dir == m.Dir
	}
}

// ModeAt returns what is done with the memory of agents in the session of the mount at dir.
func ModeAt(ctx context.Context, dir string) agenthook.MemoryMode {
	gitDir, err := agenthook.GitDir(ctx, dir)
	if err != nil {
		return agenthook.MemoryUnset
	}
	return agenthook.MemoryModeOf(gitDir)
}

// Carry sets what the hooks of agents in the mount at dir do with the memory of agents. With agenthook.MemoryPlace, it
// places the conversations that the session has. Unless the mode is given for this command, an earlier one stays. own
// is whether the user has made the session on this host. Of others, later commands place nothing without the flag.
func Carry(ctx context.Context, a *cli.App, dir string, mode agenthook.MemoryMode,
	given, own bool) ([]control.PlacedMemory, error) {
	gitDir, err := agenthook.GitDir(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("find the git directory: %w", err)
	}
	before := agenthook.MemoryModeOf(gitDir)
	if !given && before != agenthook.MemoryUnset {
		mode = before
	}
	later := mode
	if mode == agenthook.MemoryPlace && before != agenthook.MemoryPlace && !own {
		later = agenthook.MemoryKeep
	}
	if !mode.Kept() {
		return nil, agenthook.KeepMemory(gitDir, mode)
	}
	all, asked := a.Mounts(ctx)
	m, err := cli.Find(all, asked, "find", dir)
	if err != nil {
		return nil, err
	}
	// A daemon of an earlier version refuses the request.
	var lines []json.RawMessage
	if mode == agenthook.MemoryPlace {
		lines, err = read(ctx, m)
	} else { // no file has a name after this one, so nothing is read
		_, err = m.Client.SessionTranscript(ctx, control.SessionTranscriptRequest{Of: m.Dir, Memory: true, After: "~"})
	}
	if err != nil {
		return nil, err
	}
	if err := agenthook.KeepMemory(gitDir, later); err != nil || mode != agenthook.MemoryPlace {
		return nil, err
	}
	placed := []control.PlacedMemory{}
	var failed []error
	for _, c := range agenthook.Remember(lines) {
		p, err := c.Place(m.Dir, gitDir, insideOf(m, all))
		if err != nil {
			failed = append(failed, err)
			continue
		}
		placed = append(placed, control.PlacedMemory{Agent: string(p.Agent), Conversation: p.Conversation,
			Outcome: string(p.Outcome), Title: p.Title, Dir: p.Dir, File: p.File, Partial: p.Partial,
			Diverged: p.Diverged, Command: p.Command()})
	}
	return placed, errors.Join(failed...)
}

// read returns the memory of the session of a mount, oldest first.
func read(ctx context.Context, m cli.Served) ([]json.RawMessage, error) {
	var all []control.TranscriptRecord
	size := 0
	for r := (control.SessionTranscriptRequest{Of: m.Dir, Memory: true}); ; {
		reply, err := m.Client.SessionTranscript(ctx, r)
		if err != nil {
			return nil, err
		}
		for _, l := range reply.Records {
			size += len(l.Record)
		}
		if size > 2*agenthook.MaxMemory {
			return nil, fmt.Errorf("the memory of the session is larger than %s", cli.BytesOf(2*agenthook.MaxMemory))
		}
		all = append(all, reply.Records...)
		if reply.Next == "" || reply.Next <= r.After {
			break
		}
		r.After = reply.Next
	}
	slices.SortStableFunc(all, func(a, b control.TranscriptRecord) int { return a.Time.Compare(b.Time) })
	lines := make([]json.RawMessage, len(all))
	for i, l := range all {
		lines[i] = l.Record
	}
	return lines, nil
}

// State is the state of the memory of agents in a directory.
type State struct {
	Kept   bool                                     `json:"kept"` // whether it is kept in the session
	Agents map[agenthook.Agent]agenthook.MemorySize `json:"agents,omitempty"`
}

// At returns the state of the memory of agents in the directory dir.
func At(ctx context.Context, dir string) (s State) {
	if gitDir, err := agenthook.GitDir(ctx, dir); err == nil {
		s.Kept, s.Agents = agenthook.MemoryKept(gitDir)
	}
	return s
}

// Text describes the state of memory that is kept.
func (s State) Text() string {
	var parts []string
	for _, agent := range slices.Sorted(maps.Keys(s.Agents)) {
		n := s.Agents[agent]
		part := fmt.Sprintf("%s: %s, %s", agent, cli.Plural(int64(n.Conversations), "conversation"), cli.BytesOf(n.Bytes))
		if n.Dropped > 0 {
			part += " (" + cli.BytesOf(n.Dropped) + " left out, because of a limit)"
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return "kept in the session, none yet"
	}
	return "kept in the session: " + strings.Join(parts, "; ")
}
