package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/agents"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/hosting"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/daemon"
	"github.com/artifactfs/artifactfs/host/doctor"
)

// examination contains the arguments of the command "doctor".
type examination struct {
	// The values of the flags --fix, --deep and --offline.
	fix, deep, offline bool
	// remotes lists the remotes that the command line names. The command checks them in addition to the remotes of the
	// mounts.
	remotes []string
	// tokenFile is the path of the file with the token for the remotes on the command line.
	tokenFile string
}

// doctorCommand returns the command "doctor". Package doctor contains its checks, except the checks that need a daemon.
func doctorCommand(a *cli.App) *cobra.Command {
	var e examination
	cmd := &cobra.Command{
		Use:   "doctor [REMOTE...]",
		Short: "Find problems in mounts, sessions and the state directory, and repair them",
		Long: `Doctor checks everything that mounts need: the kernel (with a short test mount), fusermount3, git, the state directory
and its disk, the fetched objects, and the daemon. It finds dead mounts, files that killed processes have left, and
hooks of coding agents that have never fired. It verifies the changes of every unmounted session, and the checkpoints of
all sessions: refs, trees, packs and locks. It contacts the remotes of all mounts and sessions, and each REMOTE on the
command line, to see whether they answer and which features they support; of session remotes it also checks whether they
accept pushes.

Each check prints one line: ok, warn (works, but with limits) or bad. The exit code is 1 if a problem remains that is
bad.

Without --fix, doctor changes nothing and prints what --fix would do. --fix never deletes changes that were made in a
mount: contents that no longer belong to a path are moved to the lost+found directory of their session.`,
		Example: `  artifactfs doctor
  artifactfs doctor --fix
  artifactfs doctor https://git.example/app.git
  artifactfs doctor --json | jq '.findings[] | select(.wrong and (.mended | not))'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			e.remotes = args
			return examine(cmd.Context(), a, e)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&e.fix, "fix", false, "repair the problems that can be repaired")
	f.BoolVar(&e.deep, "deep", false, "also read and verify all fetched objects and contents")
	f.BoolVar(&e.offline, "offline", false, "do not contact remotes")
	f.StringVar(&e.tokenFile, "token-file", "", "read the token for each REMOTE on the command line from `FILE`")
	return cmd
}

// examine runs all checks and prints the findings in the order host, daemons, mounts, sessions, stores, remotes. It
// returns an error if a problem remains.
func examine(ctx context.Context, a *cli.App, e examination) error {
	findings := doctor.ExamineHost(ctx, a.State, e.fix)
	found, asked := a.Survey(ctx)
	findings = append(findings, daemonFindings(found, asked)...)
	findings = append(findings, findingsOfMounts(a, found, e.fix)...)
	findings = append(findings, findingsOfAgents(found.Mounts, agents.Look(a, found.Mounts), time.Now())...)
	state, err := doctor.Examine(ctx, a.State, e.fix, e.deep)
	if err != nil {
		return cli.Failure("doctor", a.State, err)
	}
	stores, err := doctor.ExamineStores(ctx, a.State, e.fix, e.deep)
	if err != nil {
		return cli.Failure("doctor", a.State, err)
	}
	findings = append(append(findings, state...), stores...)
	if !e.offline {
		c := doctor.RemoteCheck{Named: e.remotes, Token: a.Token, TokenFile: e.tokenFile, Login: func(url string) string {
			if at, err := hosting.OwnToken(ctx, a, url); err == nil {
				return at
			}
			// No token could be made. The check of the remote then reports why the remote cannot be reached.
			return url
		}}
		for _, m := range found.Mounts {
			if m.Mounted() && m.Remote != "" {
				c.Known = append(c.Known, m.Remote)
			}
		}
		findings = append(findings, doctor.ExamineRemotes(ctx, a.State, c)...)
	}
	wrong := 0
	for _, f := range findings {
		if f.Wrong && !f.Mended {
			wrong++
		}
	}
	if a.JSON {
		err = cli.PrintJSON(a.Stdout, map[string]any{"findings": findings, "wrong": wrong})
	} else {
		err = printFindings(a, findings)
	}
	if err == nil && wrong > 0 {
		err = &control.Error{Code: control.ExitFailed, Verb: "doctor", Object: a.State,
			Cause: cli.Plural(int64(wrong), "finding") + " to repair"}
	}
	return err
}

// daemonFindings returns the findings about the running daemons. The parameter asked is the error that the survey of
// the daemons has returned, or nil. A daemon of another version is reported as a warning.
func daemonFindings(found cli.Survey, asked error) (all []doctor.Finding) {
	say := func(level doctor.Level, object, what, hint string) {
		all = append(all, doctor.Finding{Object: object, What: what, Level: level,
			Wrong: level == doctor.LevelBad, Hint: hint})
	}
	if asked != nil {
		e := control.AsError(asked)
		say(doctor.LevelBad, "daemon", "a daemon does not answer: "+e.Error(), e.Hint)
	} else if len(found.Daemons) == 0 {
		say(doctor.LevelOK, "daemon", "no daemon is running; artifactfs mount starts one", "")
	}
	for _, d := range found.Daemons {
		what := fmt.Sprintf("answers at %s and serves %s", d.Socket, cli.Plural(int64(d.Mounts), "mount"))
		if d.PID != 0 {
			what += fmt.Sprintf(" (pid %d)", d.PID)
		}
		switch {
		case d.UpgradeFailed != "":
			say(doctor.LevelWarn, "daemon", what+", but an upgrade was undone: "+d.UpgradeFailed, "")
		case d.Version != "" && d.Version != versionText():
			say(doctor.LevelWarn, "daemon", what+", but has version "+d.Version+", while this program has version "+
				versionText(),
				"run artifactfs daemon --upgrade to replace the daemon; its mounts continue")
		case d.Takeovers > 0:
			say(doctor.LevelOK, "daemon", what+"; workers were replaced "+cli.Plural(int64(d.Takeovers),
				"time")+", the last time because: "+d.Reason, "")
		default:
			say(doctor.LevelOK, "daemon", what, "")
		}
	}
	return all
}

// findingsOfMounts returns the findings about failed and degraded mounts. If fix is set, it removes the records of
// failed mounts.
func findingsOfMounts(a *cli.App, found cli.Survey, fix bool) (all []doctor.Finding) {
	for _, m := range found.Mounts {
		switch m.State {
		case control.StateFailed:
			f := doctor.Finding{
				Object: m.Dir, What: "mount has failed: " + m.Error, Wrong: true, Level: doctor.LevelBad,
				Hint: "run " + cli.ResumeCommand(m.MountStatus) + " to mount it again",
				Mend: "removes this message; the session is kept",
			}
			if fix {
				err := daemon.ForgetFailed(a.State, m.Dir)
				f.Mended, f.Mend = err == nil, ""
				if err != nil {
					f.What += "; removal of the message failed: " + err.Error()
				}
			}
			all = append(all, f)
		case control.StateDegraded:
			all = append(all, doctor.Finding{Object: m.Dir, What: "mount is degraded: " + m.Error, Level: doctor.LevelWarn})
		}
		if m.Mounted() && m.GitReady && !m.ReadOnly && missing(filepath.Join(m.Dir, ".git")) {
			all = append(all, doctor.Finding{Object: m.Dir, What: "the name .git was removed, so git finds no repository",
				Level: doctor.LevelWarn,
				Hint:  "run artifactfs session restore -C " + cli.ShellWord(m.Dir) + " @ .git to bring it back"})
		}
	}
	return all
}

// firstFire is the time after which installed hooks that have never fired are reported as a warning.
const firstFire = time.Hour

// findingsOfAgents returns the findings about the hooks of coding agents in mounts. The parameter states contains the
// states of the hooks in each mount.
func findingsOfAgents(mounts []cli.Served, states [][]agents.AgentState, now time.Time) (all []doctor.Finding) {
	for i, m := range mounts {
		for _, s := range states[i] {
			f := doctor.Finding{Object: m.Dir, What: "hooks of " + string(s.Agent) + ": " + s.Text(now) + s.Others(),
				Level: doctor.LevelOK, Hint: s.Hint}
			if s.Error != "" || s.Installed && s.Fired == nil && now.Sub(s.Changed) > firstFire {
				f.Level = doctor.LevelWarn
			}
			all = append(all, f)
		}
	}
	return all
}

// missing reports whether a path in a mount does not exist. It returns false if the mount does not answer within
// cli.LookTime.
func missing(path string) bool {
	err, _ := cli.Look(func() error {
		_, err := os.Lstat(path)
		return err
	})
	return errors.Is(err, fs.ErrNotExist)
}

// printFindings prints the findings, one per line, with repairs and hints.
func printFindings(a *cli.App, findings []doctor.Finding) error {
	for _, f := range findings {
		sign := string(f.Level)
		if f.Mended {
			sign = "fixed"
		}
		text := cli.OneLine(f.Object + ": " + f.What)
		if _, err := fmt.Fprintf(a.Stdout, "%-5s %s\n", sign, text); err != nil {
			return cli.Printed(err)
		}
		if f.Mend != "" {
			fmt.Fprintf(a.Stdout, "      --fix %s\n", f.Mend)
		}
		if f.Hint != "" {
			fmt.Fprintf(a.Stdout, "      hint: %s\n", cli.OneLine(f.Hint))
		}
	}
	return nil
}
