package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
)

// policy is a flag that takes a control.Policy.
type policy control.Policy

const policyWords = "off|idle|before-risk|interval=DURATION"

// leastPolicyInterval is how often checkpoints are made at most.
const leastPolicyInterval = time.Second

func (p *policy) String() string { return string(*p) }

func (p *policy) Type() string { return "WHEN" }

func (p *policy) Set(text string) error {
	if every, ok := strings.CutPrefix(text, string(control.PolicyInterval)); ok {
		if d, err := time.ParseDuration(every); err != nil {
			return fmt.Errorf("%q is no duration; an example is interval=30s", every)
		} else if d < leastPolicyInterval {
			return fmt.Errorf("interval is at least %s", leastPolicyInterval)
		}
	} else if !slices.Contains([]control.Policy{control.PolicyOff, control.PolicyIdle, control.PolicyBeforeRisk}, control.Policy(text)) {
		return fmt.Errorf("must be one of %s", policyWords)
	}
	*p = policy(text)
	return nil
}

// baseMode is a flag that takes a control.BaseMode.
type baseMode control.BaseMode

// baseWords are the values of baseMode.
var baseWords = func() (words []string) {
	for _, b := range control.BaseModes {
		words = append(words, string(b))
	}
	return words
}()

func (b *baseMode) String() string { return string(*b) }

func (b *baseMode) Type() string { return "MODE" }

func (b *baseMode) Set(text string) error {
	if !slices.Contains(baseWords, text) {
		return fmt.Errorf("must be one of %s", strings.Join(baseWords, "|"))
	}
	*b = baseMode(text)
	return nil
}

// addCarryFlags adds those that say how work is carried to the session remote.
func (o *mountOptions) addCarryFlags(cmd *cobra.Command) {
	r, s, f := &o.request, &o.request.SessionOptions, cmd.Flags()
	f.StringVar(&s.Remote, "session-remote", "", "carry work to the git repository `URL`, or path, which is created if\nthere is nothing there; origin is REMOTE itself,\nembedded one below the state directory, none nowhere (default embedded)")
	f.StringVar(&s.Branches, "session-branches", "", "name branches by `PATTERN` on a session remote that others use, too;\nas-is keeps their names, and only moves them forward\n(default "+session.DefaultBranches+"; a session remote of\nthe session's own has them as they are)")
	f.Var((*policy)(&s.Policy), "checkpoint", "make checkpoints off (never), idle (when writes have settled),\nbefore-risk (before git commands that throw changes away) or\ninterval=30s (that often); idle does before-risk, too; all but off\nalso when git has moved a branch, HEAD or a stash (default idle)")
	f.Var((*baseMode)(&s.Base), "session-base", "how the session remote comes to REMOTE's history: shared (it has it),\nthin (it does without, and names URL and commit), seed (all of it is\nsent there), auto: shared if it has it, thin if it is empty and REMOTE\nis a network URL (http, https, ssh, git), else seed; a session that is\nthere already stays as it is (default auto)")
	f.BoolVar(&s.TakeOver, "take-over", false, "go on with the session though another machine seems to be at work in it")
	f.StringSliceVar(&s.Include, "include", nil, "`GLOB`s of ignored or secret paths that checkpoints hold all the same")
	f.StringSliceVar(&s.Exclude, "exclude", nil, "`GLOB`s of paths that checkpoints leave out")
	f.BoolVar(&s.NoDenyList, "no-deny-list", false, "let checkpoints hold what looks like a secret, too (.env, *.pem, ...)")
	f.Var((*size)(&s.MaxFileSize), "max-file-size", "leave larger new files out of checkpoints (default "+sizeText(capture.DefaultMaxFileSize)+")")
	f.StringVar(&r.At, "at", "", "show the checkpoint `ID` of --session, read-only")
	completeFlag(cmd, "checkpoint", "off", "idle", "before-risk", "interval=")
	completeFlag(cmd, "session-base", baseWords...)
	completeFlag(cmd, "session-branches", session.BranchesAsIs, session.DefaultBranches)
	completeFlag(cmd, "session-remote", control.RemoteEmbedded, control.RemoteOrigin, control.RemoteNone)
}

// completeCarry checks what the flags say together, and makes paths absolute.
func completeCarry(cmd *cobra.Command, r *control.MountRequest) error {
	s := &r.SessionOptions
	if r.At != "" {
		if r.Session == "" {
			return usage(cmd, errors.New("--at needs --session, whose checkpoint it is"))
		}
		r.ReadOnly = true
	}
	if r.ReadOnly && s.TakeOver {
		return usage(cmd, errors.New("--take-over makes no sense with --read-only"))
	}
	if err := (capture.Rules{Include: s.Include, Exclude: s.Exclude}).Validate(); err != nil {
		return usage(cmd, err)
	}
	if err := session.ValidBranches(s.Branches); err != nil {
		return usage(cmd, fmt.Errorf("--session-branches: %w", err))
	}
	switch s.Remote {
	case "", control.RemoteEmbedded, control.RemoteOrigin, control.RemoteNone:
		return nil
	}
	if isPath(s.Remote) {
		abs, err := filepath.Abs(s.Remote)
		if err != nil {
			return fmt.Errorf("%s: %w", cmd.Name(), err)
		}
		s.Remote = abs
	}
	return nil
}
