package mounts

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
)

// policy is the value of a flag for a control.Policy.
type policy control.Policy

// policyWords lists the values of policy for error texts.
const policyWords = "off|idle|before-risk|interval=DURATION"

// leastPolicyInterval is the shortest interval between automatic checkpoints.
const leastPolicyInterval = time.Second

// String implements pflag.Value.
func (p *policy) String() string { return string(*p) }

// Type implements pflag.Value.
func (p *policy) Type() string { return "WHEN" }

// Set implements pflag.Value.
func (p *policy) Set(text string) error {
	if every, ok := strings.CutPrefix(text, string(control.PolicyInterval)); ok {
		if d, err := time.ParseDuration(every); err != nil {
			return fmt.Errorf("invalid duration %q; an example is interval=30s", every)
		} else if d < leastPolicyInterval {
			return fmt.Errorf("interval must be at least %s", leastPolicyInterval)
		}
	} else if !slices.Contains([]control.Policy{control.PolicyOff, control.PolicyIdle, control.PolicyBeforeRisk},
		control.Policy(text)) {
		return fmt.Errorf("must be one of %s", policyWords)
	}
	*p = policy(text)
	return nil
}

// baseMode is the value of a flag for a control.BaseMode.
type baseMode control.BaseMode

// baseWords lists the values of baseMode.
var baseWords = func() (words []string) {
	for _, b := range control.BaseModes {
		words = append(words, string(b))
	}
	return words
}()

// String implements pflag.Value.
func (b *baseMode) String() string { return string(*b) }

// Type implements pflag.Value.
func (b *baseMode) Type() string { return "MODE" }

// Set implements pflag.Value.
func (b *baseMode) Set(text string) error {
	if !slices.Contains(baseWords, text) {
		return fmt.Errorf("must be one of %s", strings.Join(baseWords, "|"))
	}
	*b = baseMode(text)
	return nil
}

// commandWords is the value of a flag for a command with its arguments.
type commandWords []string

// String implements pflag.Value.
func (c *commandWords) String() string { return strings.Join(*c, " ") }

// Type implements pflag.Value.
func (c *commandWords) Type() string { return "COMMAND" }

// Set implements pflag.Value. It accepts the same texts as splitWords.
func (c *commandWords) Set(text string) (err error) {
	*c, err = splitWords(text)
	return err
}

// splitWords splits a command line at white space. Single quotes, double quotes and backslashes protect characters as
// in a shell; all other characters are ordinary. It returns an error for an unclosed quote and for an empty command.
func splitWords(text string) (words []string, err error) {
	var word strings.Builder
	inside, quote, escaped := false, rune(0), false
	for _, r := range text {
		switch {
		case escaped:
			escaped = false
			word.WriteRune(r)
		case r == '\\' && quote != '\'':
			escaped, inside = true, true
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '\'' || r == '"':
			quote, inside = r, true
		case r == ' ' || r == '\t' || r == '\n':
			if inside {
				words = append(words, word.String())
			}
			word.Reset()
			inside = false
		default:
			inside = true
			word.WriteRune(r)
		}
	}
	if quote != 0 || escaped {
		return nil, errors.New("closing quote is missing")
	}
	if inside {
		words = append(words, word.String())
	}
	if len(words) == 0 {
		return nil, errors.New("command is empty")
	}
	return words, nil
}

// addCarryFlags adds the flags that concern checkpoints and the session remote.
func (o *MountOptions) addCarryFlags(cmd *cobra.Command) {
	r, s, f := &o.Request, &o.Request.SessionOptions, cmd.Flags()
	f.StringVar(&s.Remote, "session-remote", "",
		"push the session to the git repository `URL`, or to a repository at a path,\n"+
			"which is created if it does not exist; origin: push to REMOTE itself; embedded:\n"+
			"push to a repository below the state directory; none: do not push, and make no\n"+
			"checkpoints (default embedded)")
	f.Var((*commandWords)(&r.CreateRemote), "session-remote-create",
		"run `COMMAND` to create the repository of --session-remote if it does not\nexist on the git server; see artifactfs mount --help --all")
	f.StringVar(&s.Branches, "session-branches", "",
		"`PATTERN` of the names that branches get on the session remote; as-is: the\n"+
			"same names, and branches are only fast-forwarded (default\n"+
			session.DefaultBranches+"; as-is if the repository was created for the\nsession or was empty)")
	f.Var((*policy)(&s.Policy), "checkpoint",
		"when to make checkpoints automatically: off (never); before-risk (before git\n"+
			"commands that may discard changes); idle (before-risk, and 2 s after the last\n"+
			"write); interval=30s (at this interval, if something has changed); idle and\n"+
			"interval also when git has moved a branch, HEAD or a stash (default idle)")
	f.Var((*baseMode)(&s.Base), "session-base",
		"how the session remote refers to the history of REMOTE: shared (the session\n"+
			"remote contains the history), thin (it stores only URL and commit), seed (the\n"+
			"history is pushed to it); auto: shared if it contains the history, thin if it\n"+
			"is empty and REMOTE is a network URL (http, https, ssh, git), else seed; an\n"+
			"existing session keeps its mode (default auto)")
	f.BoolVar(&s.TakeOver, "take-over", false, "resume the session even if another machine seems to use it")
	f.DurationVar(&s.Lease, "session-lease", 0,
		"`TIME` after its last sign of life after which other machines may resume the\nsession without --take-over (default 15m)")
	f.StringVar(&s.Identity, "identity", "",
		"`NAME` that only one running sandbox has at a time, such as the name of a\n"+
			"container: a mount with the same name resumes the session without --take-over")
	f.StringSliceVar(&s.Include, "include", nil,
		"`GLOB`s of paths that checkpoints contain even if git ignores them or they look\n"+
			"like secrets")
	f.StringSliceVar(&s.Exclude, "exclude", nil, "`GLOB`s of paths that checkpoints do not contain")
	f.BoolVar(&s.NoDenyList, "no-deny-list", false,
		"also include files that look like secrets (.env, *.pem, ...) in checkpoints")
	f.Var((*cli.Size)(&s.MaxFileSize), "max-file-size",
		"leave new files that are larger out of checkpoints (default "+cli.SizeText(capture.DefaultMaxFileSize)+")")
	f.BoolVar(&o.agentMemory, "agent-memory", false,
		"keep the conversations of claude, codex and gemini in the session, and place\n"+
			"those of the session where the agents of this user find them; =false stops that")
	f.StringVar(&r.At, "at", "", "mount the checkpoint `ID` of --session, read-only")
	cli.CompleteFlag(cmd, "checkpoint", "off", "idle", "before-risk", "interval=")
	cli.CompleteFlag(cmd, "session-base", baseWords...)
	cli.CompleteFlag(cmd, "session-branches", session.BranchesAsIs, session.DefaultBranches)
	cli.CompleteFlag(cmd, "session-remote", control.RemoteEmbedded, control.RemoteOrigin, control.RemoteNone)
}

// completeCarry checks the combination of the flags that addCarryFlags has added, and makes paths absolute.
func completeCarry(cmd *cobra.Command, r *control.MountRequest) error {
	s := &r.SessionOptions
	// A mount of a checkpoint must be read-only.
	if r.At != "" {
		if r.Session == "" {
			return cli.Usage(cmd, errors.New("--at needs --session, the session of the checkpoint"))
		}
		r.ReadOnly = true
	}
	if r.ReadOnly && s.TakeOver {
		return cli.Usage(cmd, errors.New("--take-over and --read-only exclude each other"))
	}
	if err := (capture.Rules{Include: s.Include, Exclude: s.Exclude}).Validate(); err != nil {
		return cli.Usage(cmd, err)
	}
	if err := session.ValidBranches(s.Branches); err != nil {
		return cli.Usage(cmd, fmt.Errorf("--session-branches: %w", err))
	}
	// Make the path absolute, because the daemon runs in another directory.
	if len(r.CreateRemote) > 0 && strings.Contains(r.CreateRemote[0], "/") {
		abs, err := filepath.Abs(r.CreateRemote[0])
		if err != nil {
			return fmt.Errorf("%s: %w", cmd.Name(), err)
		}
		r.CreateRemote[0] = abs
	}
	switch s.Remote {
	case "", control.RemoteEmbedded, control.RemoteOrigin, control.RemoteNone:
		return nil
	}
	if cli.IsPath(s.Remote) {
		abs, err := filepath.Abs(s.Remote)
		if err != nil {
			return fmt.Errorf("%s: %w", cmd.Name(), err)
		}
		s.Remote = abs
	}
	return nil
}
