package agenthook

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// Conversation is a conversation that an agent seems to continue in a working tree: its agent is running, and its hooks
// have received an event not long ago.
type Conversation struct {
	Agent Agent     `json:"-"`
	Name  string    `json:"conversation"` // name that the agent has given to the conversation
	Seen  time.Time `json:"seen"`         // time of the newest event

	process process
}

// These constants limit the time since the newest event of a conversation that Conversations returns.
const (
	maxSilent = 2 * time.Hour    // for an agent whose process is running
	maxUnseen = 10 * time.Minute // for an agent whose process is not visible, such as one in another container
)

// maxTurn is the maximum size in bytes of the file of a conversation that is read.
const maxTurn = 64 << 10

// process identifies the process of an agent. A process with the same ID may belong to another container, or may have
// received the ID later, so the namespace and the start time are part of the identity.
type process struct {
	Boot      string `json:"boot,omitempty"`      // id of the host's boot
	Namespace string `json:"namespace,omitempty"` // namespace of the process ID
	PID       int    `json:"pid,omitempty"`       // 0 if the process is unknown
	Start     uint64 `json:"start,omitempty"`     // start time, as in proc.Stat
}

// here returns a process whose ID is unknown, in the namespace of this process.
func here() (p process) {
	p.Boot, _ = proc.BootID()
	p.Namespace, _ = proc.Self.Namespace("pid")
	return p
}

// agentProcess returns the process of the agent a, which has run this process as a hook. An agent runs a hook by a
// shell, and some shells stay between the agent and the hook.
func agentProcess(a Agent) process {
	p := here()
	// Process 1 is not the agent: it adopts a hook whose agent has ended.
	for pid := os.Getppid(); pid > 1; {
		s, err := proc.Of(pid).Stat()
		if err != nil {
			break
		}
		args, _ := proc.Of(pid).Args()
		command := " " + strings.Join(args, " ")
		if !strings.HasSuffix(command, commandSuffix(a)) && !strings.HasSuffix(command, " session hook "+string(a)) {
			p.PID, p.Start = pid, s.Start
			break
		}
		pid = s.Parent
	}
	return p
}

// runs reports whether the process seems to run at the time now. The parameter seen is the time of the newest event of
// its conversation, and at is the result of here.
func (p process) runs(seen, now time.Time, at process) bool {
	silent := now.Sub(seen)
	switch {
	case p.Boot != at.Boot:
		return false // it ran before the host was started
	case p.PID == 0 || p.Namespace != at.Namespace:
		return silent < maxUnseen
	}
	s, err := proc.Of(p.PID).Stat()
	return err == nil && s.Start == p.Start && !s.Ended() && silent < maxSilent
}

// related reports whether p and q are the same process, or one of them is an ancestor of the other, because an agent
// that was started by another agent works for this agent. It returns true if it cannot distinguish the processes.
func (p process) related(q process) bool {
	if p.Boot != q.Boot || p.Namespace != q.Namespace {
		return false
	}
	return p.PID == 0 || q.PID == 0 || descends(p.PID, q.PID) || descends(q.PID, p.PID)
}

// descends reports whether the process pid is the process ancestor or one of its descendants.
func descends(pid, ancestor int) bool {
	for pid != ancestor {
		s, err := proc.Of(pid).Stat()
		if err != nil || s.Parent <= 1 {
			return false
		}
		pid = s.Parent
	}
	return true
}

// Conversations returns the conversations that agents seem to continue in the working tree of a git directory at the
// time now, in the order of their newest events. If a process has several conversations, only the newest one is
// returned. Files that cannot be read, or are of an older version, are skipped: a container may be able to change them.
func Conversations(gitDir string, now time.Time) (all []Conversation) {
	dir := filepath.Join(gitDir, hooksDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	at := here()
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || filepath.Ext(e.Name()) != ".json" || now.Sub(info.ModTime()) > maxSilent {
			continue
		}
		var t Turn
		text, err := disk.ReadRegular(filepath.Join(dir, e.Name()), maxTurn)
		if err != nil || json.Unmarshal(text, &t) != nil || !slices.Contains(Agents(), t.Agent) || t.Conversation == "" {
			continue
		}
		if t.Process.runs(info.ModTime(), now, at) {
			all = append(all, Conversation{t.Agent, t.Conversation, info.ModTime(), t.Process})
		}
	}
	slices.SortStableFunc(all, func(a, b Conversation) int { return b.Seen.Compare(a.Seen) })
	newest := all[:0]
	for _, c := range all {
		same := func(n Conversation) bool { return c.process.PID != 0 && n.process == c.process }
		if !slices.ContainsFunc(newest, same) {
			newest = append(newest, c)
		}
	}
	return newest
}

// Join stores that the agent of the event e works in the working tree of a git directory at the time now. If the agent
// has just begun its conversation, or has resumed it in another process, Join returns the conversations of other agents
// in the same tree.
func Join(gitDir string, e Event, now time.Time) ([]Conversation, error) {
	if e.Session == "" || e.Kind == SessionEnd {
		return nil, nil
	}
	turn, known, err := LoadTurn(gitDir, e.Session)
	if err != nil {
		return nil, err
	}
	before := turn
	turn.Agent, turn.Process = e.Agent, agentProcess(e.Agent)
	turn.Conversation = limit(e.Session, maxConversation)
	if known && turn == before {
		return nil, missingIsFine(os.Chtimes(turnFile(gitDir, e.Session), now, now))
	}
	// Store the conversation before looking for others. Of two agents that begin at once, at least one finds the other.
	if err := turn.Save(gitDir, e.Session); err != nil {
		return nil, err
	}
	begins := !known && (e.Kind == SessionStart || e.Kind == Prompt)
	resumes := known && e.Kind == SessionStart && before.Agent == e.Agent
	if !begins && !resumes || e.Sub != "" {
		return nil, nil
	}
	return others(gitDir, turn, now), nil
}

// Shared reports whether other agents than that of the event e work in the working tree of a git directory at the time
// now.
func Shared(gitDir string, e Event, now time.Time) bool {
	self := Turn{Agent: e.Agent, Process: agentProcess(e.Agent), Conversation: limit(e.Session, maxConversation)}
	return len(others(gitDir, self, now)) > 0
}

// others returns the conversations of other agents than that of self in the working tree of a git directory at the time
// now. An agent that was started by this agent, or has started it, is no other agent.
func others(gitDir string, self Turn, now time.Time) []Conversation {
	return slices.DeleteFunc(Conversations(gitDir, now), func(c Conversation) bool {
		return c.Agent == self.Agent && c.Name == self.Conversation || c.process.related(self.Process)
	})
}

// Answer returns the text that the hook of an event has to print on stdout, so that the agent passes a text to its
// model and shows it to the user. It is used for events that begin a conversation or a turn. The parameter text is ""
// if there is nothing to pass.
func (e Event) Answer(text string) string {
	switch {
	case text == "" && e.Agent == Gemini:
		return "{}\n" // Gemini expects JSON from each hook
	case text == "":
		return ""
	case e.Agent == OpenCode:
		return text + "\n" // the plugin adds the text to the prompt
	case e.Agent == Copilot || e.Agent == Cursor:
		member := "additionalContext"
		if e.Agent == Cursor {
			member = "additional_context"
		}
		out, _ := json.Marshal(map[string]string{member: text}) // cannot fail
		return string(out) + "\n"
	}
	var answer struct {
		Message  string `json:"systemMessage"`
		Specific struct {
			Event   string `json:"hookEventName"`
			Context string `json:"additionalContext"`
		} `json:"hookSpecificOutput"`
	}
	answer.Message = text
	answer.Specific.Event, answer.Specific.Context = e.Name, text
	out, _ := json.Marshal(answer) // cannot fail, because answer consists of strings
	return string(out) + "\n"
}
