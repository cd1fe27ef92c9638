package sessions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/hosting"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/credential"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/transport/tokenfile"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session/forge"
)

// credentialTime is the maximum time for which the command waits for the login of a mount.
const credentialTime = 15 * time.Second

// promoteFlags holds the flags of "session promote".
type promoteFlags struct {
	of, remote        string
	to, message       string
	ff, squash, merge bool
	dryRun            bool

	pullRequest     bool
	title, head     string
	forge, forgeURL string
	tokenFile       string
}

// promoteReply is the output of `session promote --json`.
type promoteReply struct {
	control.SessionPromoteReply
	PullRequest *pullRequest `json:"pull_request,omitempty"`
}

// pullRequest describes an open pull request.
type pullRequest struct {
	URL    string `json:"url"`
	Number int64  `json:"number"`
	// whether this command has created the pull request; false if the pull request existed already
	Created bool `json:"created"`
}

// sessionPromoteCommand returns the command "session promote".
func sessionPromoteCommand(a *cli.App) *cobra.Command {
	var f promoteFlags
	cmd := &cobra.Command{
		Use:   "promote [POINT]",
		Short: "Push the commits of a session to a branch of the source, or open a pull request",
		Long: `Promote pushes the commits of a session to the branch that was mounted, or to the branch and repository of --to.
POINT is a checkpoint, whose HEAD is promoted. Without it, the present HEAD is promoted, and changes that are not
committed are an error. Checkpoints and other refs of the session are never pushed.

The branch moves by a fast-forward. If it has commits that the session lacks, choose:
  --squash   one new commit on the branch has all changes
  --merge    a merge commit joins the branch and the commits of the session
Both merge as git does; conflicts are refused with the list of paths. The push is a compare-and-swap: it never
overwrites a commit, and is tried a second time if the branch moves at the same moment. The author of a new commit is
user.name of the mount, and the commit is signed if commit.gpgSign is set. If the server refuses the push, its words
are printed. Only objects that the repository lacks are sent; for the mounted remote nothing is fetched, except to
merge.

--pull-request pushes to the branch afs/SESSION (--head) instead, and opens a pull request to the branch on gitea,
GitHub or GitLab. If one is open already, its description is replaced. The description is that of session summary. The
token for the API is that of --forge-token-file or $` + cli.ForgeTokenVariable + `, or the password that the mount
or git's credential helper has for the URL of the repository.

The exit code is 3 if the branch was not moved because of a conflict or a refusal.

` + addressHelp,
		Example: `  artifactfs session promote --dry-run
  artifactfs session promote --squash -m 'fix login'
  artifactfs session promote HEAD --to :release-1.2 --merge
  artifactfs session promote fix-login@before-rename --to https://git.example.org/app.git:main
  artifactfs session promote --pull-request --title 'Fix login' --forge-token-file ~/.github-token`,
		Args: cli.Arguments(0, 1, "[POINT]"),
		RunE: func(cmd *cobra.Command,
			args []string) error {
			return sessionPromote(cmd, a, f, cli.First(args))
		},
		ValidArgsFunction: completeCheckpoints(a, &f.of, 1),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.to, "to", "", "push to `URL[:BRANCH]`; :BRANCH alone is a branch of the mounted remote")
	flags.BoolVar(&f.ff, "ff", false, "move the branch by a fast-forward only (default)")
	flags.BoolVar(&f.squash, "squash", false, "put the changes on the branch as one commit")
	flags.BoolVar(&f.merge, "merge", false, "join the branch and the commits by a merge commit")
	flags.StringVarP(&f.message, "message", "m", "",
		"message of the new commit of --squash and --merge (default: a list of the commits)")
	flags.BoolVar(&f.dryRun, "dry-run", false, "push nothing, print what would be pushed")
	flags.BoolVar(&f.pullRequest, "pull-request", false, "push to another branch, and open a pull request to the branch")
	flags.StringVar(&f.title, "title", "", "title of the pull request (default: from session summary)")
	flags.StringVar(&f.head, "head", "", "branch of the pull request (default: afs/SESSION)")
	flags.StringVar(&f.forge, "forge", "", "kind of the forge, `gitea|github|gitlab` (default: by the name of its host)")
	flags.StringVar(&f.forgeURL, "forge-url", "", "address of the forge's web pages (default: the host of the repository)")
	flags.StringVar(&f.tokenFile, "forge-token-file", "", "`file` with the token for the forge's API")
	cli.CompleteFlag(cmd, "forge", forge.Kinds...)
	ofFlag(a, cmd, &f.of)
	farFlag(a, cmd, &f.remote)
	return cmd
}

// request returns the request that the flags describe. The caller adds the session and the checkpoint.
func (f promoteFlags) request(cmd *cobra.Command, a *cli.App) (r control.SessionPromoteRequest, err error) {
	usage := func(text string) (control.SessionPromoteRequest, error) { return r, cli.Usage(cmd, errors.New(text)) }
	if f.ff && f.squash || f.ff && f.merge || f.squash && f.merge {
		return usage("--ff, --squash and --merge exclude each other")
	}
	if f.message != "" && !f.squash && !f.merge {
		return usage("--message needs --squash or --merge")
	}
	if !f.pullRequest && (f.title != "" || f.head != "" || f.forge != "" || f.forgeURL != "" || f.tokenFile != "") {
		return usage("--title, --head and --forge... need --pull-request")
	}
	r = control.SessionPromoteRequest{Method: control.PromoteFF, Message: f.message, DryRun: f.dryRun,
		PullRequest: f.pullRequest,
		PullBranch:  f.head, Identity: control.Identity()}
	switch {
	case f.squash:
		r.Method = control.PromoteSquash
	case f.merge:
		r.Method = control.PromoteMerge
	}
	if r.To, r.Branch = splitTarget(f.to); r.To == control.RemoteOrigin {
		r.To = ""
	}
	r.To, err = loginAt(cmd.Context(), a, "promote", r.To)
	return r, err
}

// splitTarget splits an argument of the form URL[:BRANCH]. A colon in the authority of a URL, or after the host in an
// address HOST:PATH, does not begin a branch.
func splitTarget(word string) (to, branch string) {
	from := 0
	if scheme, rest, ok := strings.Cut(word, "://"); ok {
		if from = strings.Index(rest, "/"); from < 0 {
			return word, ""
		}
		from += len(scheme) + len("://")
	} else if host, _, ok := strings.Cut(word, ":"); ok && host != "" && host != control.RemoteOrigin &&
		!strings.Contains(host, "/") {
		from = len(host) + 1
	}
	if _, err := os.Lstat(word); from == 0 && err == nil {
		return word, ""
	}
	i := strings.LastIndex(word[from:], ":")
	if i < 0 {
		return word, ""
	}
	return word[:from+i], word[from+i+1:]
}

// sessionPromote promotes the commits, opens the pull request, and prints the result.
func sessionPromote(cmd *cobra.Command, a *cli.App, f promoteFlags, point string) error {
	ctx := cmd.Context()
	r, err := f.request(cmd, a)
	if err != nil {
		return err
	}
	w, id, err := workAt(ctx, a, "promote", f.of, f.remote, point)
	if err != nil {
		return err
	}
	r.Of, r.SessionRemote, r.ID = w.of, w.at, id
	if r.To == "" && w.mount == nil && w.remote == "" {
		// The daemon has credentials only for the remotes of its mounts.
		all, _ := a.Mounts(ctx)
		i := slices.IndexFunc(all, func(m cli.Served) bool { return !m.Mounted() && m.Session.Name == w.of })
		if i >= 0 {
			if r.To, err = hosting.WithToken(ctx, a, all[i].Remote); err != nil {
				return err
			}
		}
	}
	var hub *forge.Forge
	if f.pullRequest && !f.dryRun {
		// Check before the push everything that can fail after it.
		if hub, err = f.hub(ctx, a, w, r); err != nil {
			return err
		}
	}
	reply, err := control.SessionPromote(ctx, w.client, r)
	if err != nil {
		return cli.Failure("promote", w.name(), err)
	}
	out := promoteReply{SessionPromoteReply: reply}
	if hub != nil && (reply.Method != control.PromoteNone || reply.Old != "") {
		if out.PullRequest, err = f.open(ctx, hub, w, reply); err != nil {
			return err
		}
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, out)
	}
	return printPromoted(a, out)
}

// printPromoted prints the result. If there is a pull request, its address is printed to stdout and everything else to
// stderr.
func printPromoted(a *cli.App, r promoteReply) error {
	out := a.Stdout
	if r.PullRequest != nil {
		out = a.Stderr
	}
	where := cli.OneLine(r.Branch) + " of " + r.Target
	short := func(id string) string { return id[:min(12, len(id))] }
	switch {
	case r.Method == control.PromoteNone:
		fmt.Fprintf(out, "nothing to promote: %s contains the commits already\n", where)
	default:
		verb, how := "promoted", ""
		switch r.Method {
		case control.PromoteSquash:
			how = " as one commit"
		case control.PromoteMerge:
			how = " by a merge commit"
		}
		if r.DryRun {
			verb = "would promote"
		}
		move := short(r.New)
		if r.Old != "" && r.New != "" {
			move = short(r.Old) + ".." + short(r.New)
		}
		if move != "" {
			how += " (" + move + ")"
		}
		fmt.Fprintf(out, "%s %s to %s%s\n", verb, cli.Plural(r.Total, "commit"), where, how)
		for _, c := range r.Commits {
			fmt.Fprintf(out, "  %s %s\n", short(c.ID), cli.OneLine(c.Subject))
		}
	}
	if r.PullRequest == nil {
		return nil
	}
	_, err := fmt.Fprintln(a.Stdout, cli.OneLine(r.PullRequest.URL))
	return err
}

// hub returns the forge of the repository to which the commits are to be pushed, with the token for its API. To find
// the repository, hub requests a dry run of the promotion.
func (f promoteFlags) hub(ctx context.Context, a *cli.App, w work,
	r control.SessionPromoteRequest) (*forge.Forge, error) {
	r.DryRun = true
	reply, err := control.SessionPromote(ctx, w.client, r)
	if err != nil {
		return nil, cli.Failure("promote", w.name(), err)
	}
	failed := func(cause, hint string) error {
		return &control.Error{Code: control.ExitUsage, Verb: "open pull request on", Object: reply.Target,
			Cause: cause, Hint: hint}
	}
	token, err := f.token(ctx, a, w, reply.Target)
	if err != nil {
		return nil, failed(err.Error(), "")
	}
	if token == "" {
		return nil, failed("there is no token for the forge",
			"set $"+cli.ForgeTokenVariable+", use --forge-token-file, or store the password in a git credential helper")
	}
	hub, err := forge.New(forge.Options{Repository: reply.Target, Kind: forge.Kind(f.forge), URL: f.forgeURL,
		Token: token})
	if err != nil {
		return nil, failed(err.Error(), "add --forge "+strings.Join(forge.Kinds, "|")+", and --forge-url for its address")
	}
	return hub, nil
}

// open opens a pull request for the branch that was pushed.
func (f promoteFlags) open(ctx context.Context, hub *forge.Forge, w work,
	r control.SessionPromoteReply) (*pullRequest, error) {
	ask := control.SessionSummaryRequest{Of: w.of, SessionRemote: w.at, ID: r.Checkpoint, Committed: true}
	s, err := control.SessionSummary(ctx, w.client, ask)
	if err != nil {
		return nil, cli.Failure("summarise", w.name(), err)
	}
	p := forge.PullRequest{Title: s.Title, Body: markdown(s), Head: r.Branch, Base: r.Base}
	if f.title != "" {
		p.Title, p.Retitle = f.title, true
	}
	opened, err := hub.Open(ctx, p)
	if err != nil {
		return nil, &control.Error{Code: control.ExitRemote, Verb: "open pull request for",
			Object: r.Branch + " of " + r.Target,
			Cause:  err.Error(), Hint: "the branch was pushed; check the token of the forge, and run the command again"}
	}
	return &pullRequest{URL: opened.URL, Number: opened.Number, Created: opened.Created}, nil
}

// token returns the token for the API of the forge. This is the token of the flag or of the environment or, without
// one, the password that the mount or git's credential helpers have for the URL of the repository. token returns "" if
// there is none.
func (f promoteFlags) token(ctx context.Context, a *cli.App, w work, repository string) (string, error) {
	if f.tokenFile != "" {
		return tokenfile.New(f.tokenFile).Token(os.Environ())
	}
	if a.ForgeToken != "" {
		return string(a.ForgeToken), nil
	}
	u, err := url.Parse(repository)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return "", nil
	}
	question := fmt.Sprintf("protocol=%s\nhost=%s\npath=%s\n", u.Scheme, u.Host, strings.TrimPrefix(u.Path, "/"))
	if name := u.User.Username(); name != "" {
		question += "username=" + name + "\n"
	}
	question += "\n"
	if w.mount != nil {
		limited, cancel := context.WithTimeout(ctx, credentialTime)
		defer cancel()
		var out bytes.Buffer
		dir := filepath.Join(statedir.Homes{State: a.State}.Dir(), w.mount.ID, "git")
		if err := credential.Ask(limited, dir, "get", strings.NewReader(question), &out); err == nil {
			if token := credential.PasswordIn(out.Bytes()); token != "" {
				return token, nil
			}
		}
	}
	// Do not run git in the mount: programs in the mount can change git's settings there, and git would run the
	// credential helpers that these settings name.
	cmd := gitcmd.New(ctx, "credential", "fill")
	cmd.Env = append(cmd.Env, gitcmd.NoPrompt, "GIT_ASKPASS=", "SSH_ASKPASS=")
	cmd.Stdin = strings.NewReader(question)
	out, err := gitcmd.Output(cmd)
	if err != nil {
		// The command fails if no helper has a password, because git must not prompt. This is not an error.
		return "", ctx.Err()
	}
	return credential.PasswordIn(out), nil
}
