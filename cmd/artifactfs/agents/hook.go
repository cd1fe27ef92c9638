package agents

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/memory"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session/agenthook"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// HookCommand returns the hidden command that coding agents run as a hook. Its name is written in the configurations of
// agents.
func HookCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:    "hook AGENT",
		Hidden: true,
		Short:  "Record an event of a coding agent, which is read from stdin",
		Args:   cli.Arguments(1, 1, "AGENT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			// An exit code other than 0 would make the agent show an error to the user, or stop the tool. Only a tree that
			// could not be made, or not be removed, is an error of the agent, too.
			err := sessionHook(cmd.Context(), a, args[0])
			var failed treeError
			switch {
			case errors.As(err, &failed):
				cli.PrintError(a.Stderr, control.AsError(failed.error))
				return cli.ExitCode(control.ExitFailed)
			case err != nil:
				fmt.Fprintf(a.Stderr, "artifactfs: record an event of %s: %s\n", args[0], control.AsError(err).Error())
			}
			return nil
		},
	}
}

// sessionHook reads one event from stdin and records it in the session of the event's directory. It also stores in the
// git directory that the hook has fired, even if nothing is recorded: because of the kind of the event, or because no
// mount is there. If another agent works in the same tree, it prints a notice for an agent that begins a conversation.
// If the event asks for a working tree, or for the removal of one, it does that instead of recording the event.
func sessionHook(ctx context.Context, a *cli.App, name string) error {
	began := time.Now()
	agent, err := agenthook.ParseAgent(name)
	if err != nil {
		return err
	}
	event, notice := agenthook.Event{Agent: agent}, ""
	// The context does not end a system call, for example on a disk that does not answer.
	kind := agenthook.Other
	end := func() {
		fmt.Fprint(a.Stdout, agenthook.Event{Agent: agent}.Answer(""))
		if kind == agenthook.MakeTree || kind == agenthook.RemoveTree {
			os.Exit(control.ExitFailed)
		}
		os.Exit(0)
	}
	late := time.AfterFunc(event.Latest(), end)
	defer func() {
		if late.Stop() {
			fmt.Fprint(a.Stdout, event.Answer(notice))
		}
	}()
	text, err := io.ReadAll(io.LimitReader(os.Stdin, agenthook.MaxEvent+1))
	if err != nil {
		return fmt.Errorf("read stdin: %w", err)
	}
	parsed, err := agenthook.Parse(agent, text)
	if err != nil && (parsed.Kind == agenthook.MakeTree || parsed.Kind == agenthook.RemoveTree) {
		return treeError{err}
	}
	if err != nil {
		return err
	}
	event = parsed
	if late.Stop() {
		kind = event.Kind
		late = time.AfterFunc(event.Latest()-time.Since(began), end)
	}
	ctx, cancel := context.WithTimeout(ctx, event.Timeout())
	defer cancel()
	event.Dir = cmp.Or(event.Dir, ".")
	var failed error
	gitDir, err := agenthook.GitDir(ctx, event.Dir)
	if err != nil {
		gitDir = "" // the directory is in no git repository
	} else if err := agenthook.NoteFired(gitDir, event); err != nil {
		failed = fmt.Errorf("store that the hook has fired: %w", err)
	}
	switch event.Kind {
	case agenthook.Other:
		return failed
	case agenthook.MakeTree, agenthook.RemoveTree:
		return cmp.Or(changeTree(ctx, a, event), failed)
	}
	notice, err = recordInMount(ctx, a, gitDir, event)
	return errors.Join(failed, err)
}

// recordInMount records an event in the session of the mount that contains the event's directory. It does nothing
// outside of mounts. gitDir is the git directory, or "" if git finds none. The result is the notice for an agent that
// begins a conversation where another agent works, and otherwise "".
func recordInMount(ctx context.Context, a *cli.App, gitDir string, event agenthook.Event) (string, error) {
	all, asked := a.Mounts(ctx)
	m, err := cli.Find(all, asked, "record", event.Dir)
	if e := control.AsError(err); e != nil && e.Code == control.ExitNotMounted {
		// report no error, because one configuration may apply to many directories, some of them outside of mounts
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if m.Session.Name == "" {
		return "", nil // A read-only mount has no session in which to record the event.
	}
	notice := ""
	if gitDir != "" {
		now := time.Now()
		again, failed := agenthook.Repeated(gitDir, event, now)
		if again {
			return "", nil
		}
		others, joined := agenthook.Join(gitDir, event, now)
		if err = errors.Join(failed, joined); len(others) > 0 {
			notice = sharingNotice(all, m, others, now)
		}
	}
	err = errors.Join(err, recordEvent(ctx, m, gitDir, event))
	return notice, errors.Join(err, memory.Send(ctx, all, m, gitDir, event))
}

// recordEvent makes a checkpoint, appends a record and annotates commits, if the event requires the step. It continues
// with the next step after an error.
func recordEvent(ctx context.Context, m cli.Served, gitDir string, e agenthook.Event) error {
	var failed []error
	if e.MakesCheckpoint() {
		title := e.Title()
		if !m.Session.Dirty && (e.Kind == agenthook.ToolResult || e.BoundsSub()) {
			title = "" // a new message would make a checkpoint even if the agent has changed nothing
		}
		reply, err := m.Client.Checkpoint(ctx, control.CheckpointRequest{Dir: m.Dir, Message: title}, nil)
		if err != nil {
			failed = append(failed, cli.Failure("checkpoint", m.Dir, err))
		}
		e.Checkpoint = reply.ID
	}
	if e.Kind == agenthook.Compact {
		var err error
		if e, err = recordTexts(ctx, m, gitDir, e); err != nil {
			failed = append(failed, cli.Failure("record texts", m.Dir, err))
		}
	}
	line, err := e.Record()
	if err == nil {
		_, err = m.Client.SessionRecord(ctx, control.SessionRecordRequest{Dir: m.Dir, Lines: []string{line}})
	}
	if err != nil {
		failed = append(failed, cli.Failure("record", m.Dir, err))
	}
	if err := noteCommits(ctx, m, gitDir, e); err != nil {
		failed = append(failed, cli.Failure("record commits", m.Dir, err))
	}
	return errors.Join(failed...)
}

const (
	maxNotedPrompt = 500 // maximum length of the prompt in a note, in bytes
	// maxNoted is the maximum number of commits that get a note after one event. If there are more new commits, they
	// come from a rebase and not from the agent's turn.
	maxNoted = 100
)

// commitNote is the git note on a commit of an agent.
type commitNote struct {
	Agent      agenthook.Agent `json:"agent"`
	Session    string          `json:"agent_session,omitempty"`
	Model      string          `json:"model,omitempty"`
	Prompt     string          `json:"prompt,omitempty"`
	Checkpoint string          `json:"checkpoint,omitempty"`
}

// noteCommits annotates the commits that were made since the previous event. It also stores the prompt of a turn for
// the notes on the commits of this turn.
//
// The state between two events (agenthook.Turn) is a file in the git directory, which is removed when the agent's
// session ends.
func noteCommits(ctx context.Context, m cli.Served, gitDir string, e agenthook.Event) error {
	if gitDir == "" {
		return errors.New("git finds no repository")
	}
	if e.Kind == agenthook.SessionEnd {
		return agenthook.ForgetTurn(gitDir, e.Session)
	}
	turn, known, err := agenthook.LoadTurn(gitDir, e.Session)
	if err != nil {
		return err
	}
	before := turn
	made, err := turn.Commits(gitDir)
	if err != nil {
		return err
	}
	switch {
	case e.Kind == agenthook.Prompt, e.Kind == agenthook.SessionStart:
		made = nil // The commits were made between two turns, so the user has made them.
	case len(made) > 0 && e.Kind != agenthook.ToolResult && agenthook.Shared(gitDir, e, time.Now()):
		made = nil // The commits were made while no tool of this agent ran, so another agent has probably made them.
	}
	for _, commit := range made[:min(len(made), maxNoted)] {
		note, err := json.Marshal(commitNote{e.Agent, e.Session, e.Model, turn.Prompt, e.Checkpoint})
		if err != nil {
			return err
		}
		if _, err := m.Client.SessionNote(ctx, control.SessionNoteRequest{Dir: m.Dir, Commit: commit, Ref: "agent",
			JSON: note}); err != nil {
			return err
		}
	}
	if e.Kind == agenthook.Prompt {
		prompt, _ := transcript.Redact(e.Text) // redact before the text is cut, so that no part of a secret remains
		turn.Prompt = strings.ToValidUTF8(prompt[:min(len(prompt), maxNotedPrompt)], "")
	}
	// Most events do not change the state. If the state is unchanged, do not write the file.
	if known && turn == before {
		return nil
	}
	return turn.Save(gitDir, e.Session)
}
