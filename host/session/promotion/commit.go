package promotion

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/guard"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/review"
)

// Regular expressions of the names of git settings of a mount that apply to a new commit. No other settings apply,
// because programs in a mount can change them, and settings such as gpg.program name programs that git would run as the
// user of the daemon.
const (
	nameSettings = `^(user|author|committer)\.(name|email)$`
	signSettings = `^user\.signingkey$|^gpg\.format$|^commit\.gpgsign$`
)

// commit creates the commit of the methods squash and merge, with the given tree, on top of the commit onto. Its author
// is the user of the mount. It signs the commit if commit.gpgSign is set, except in a dry run.
func (p *promotion) commit(ctx context.Context, tree, onto object.ID, commits []owned) (id object.ID, err error) {
	settings, err := p.settings(ctx)
	if err != nil {
		return id, err
	}
	settings = slices.Clip(settings) // each command appends its own arguments
	args := append(settings, "commit-tree", tree.String(), "-p", onto.String())
	if p.reply.Method == control.PromoteMerge {
		args = append(args, "-p", p.work.head.String())
	}
	if !p.r.DryRun {
		sign, err := p.git().Output(ctx, "", append(settings, "config", "--type=bool", "--default=false",
			"commit.gpgSign")...)
		if err != nil {
			return id, err
		}
		if strings.TrimSpace(string(sign)) == "true" {
			key, err := p.key(ctx, settings)
			if err != nil {
				return id, err
			}
			args = append(args, "-S"+key)
		}
	}
	if err := p.identify(ctx); err != nil {
		return id, err
	}
	out, err := p.git().Output(ctx, p.message(commits), append(args, "-F", "-")...)
	if err != nil {
		return id, err
	}
	return object.ParseID(strings.TrimSpace(string(out)))
}

// identify sets p.committer to the user of the token, if the target is a server of this program, because an approval
// covers a squash or merge by the user who pushes it. The author remains the user of the mount.
func (p *promotion) identify(ctx context.Context) error {
	who, known, err := p.target.Identity(ctx)
	if err != nil {
		return p.failed(err)
	}
	if known {
		p.committer = []string{"GIT_COMMITTER_NAME=" + approval.Person(who.Actor),
			"GIT_COMMITTER_EMAIL=" + approval.Address(who.Actor)}
	}
	return nil
}

// key returns the key with which the new commit is signed, or "" to leave the choice to git. If git would search a key
// by the name of the committer, key returns the name of the user of the mount, because the committer may be another
// name of the same user.
func (p *promotion) key(ctx context.Context, settings []string) (string, error) {
	out, err := p.git().Output(ctx, "", append(settings, "config", "--get-regexp", `^user\.signingkey$|^gpg\.format$`)...)
	if err == nil && len(out) > 0 || err != nil && !gitcmd.Exited(err, 1) { // 1: neither is set
		return "", err
	}
	out, err = p.git().Output(ctx, "", append(settings, "var", "GIT_COMMITTER_IDENT")...)
	name, _, _ := strings.Cut(string(out), ">")
	return name + ">", err
}

// settings returns the arguments of git that set the user of the mount. For a session that is not mounted, the user's
// name and address are in the checkpoints; a signing key in the checkpoints is ignored, because they may come from a
// session remote.
func (p *promotion) settings(ctx context.Context) ([]string, error) {
	// settings about signing are ignored, because a container may name a key of the host
	if p.o.GitDir != "" && guard.Exists(p.o.GitDir) {
		repo, err := guard.Open(ctx, p.o.GitDir)
		if err != nil {
			return nil, err
		}
		return p.settingsIn(ctx, filepath.Join(repo.Dir, "config"), nameSettings)
	}
	if p.o.GitDir != "" {
		return p.settingsIn(ctx, filepath.Join(p.o.GitDir, "config"), nameSettings+"|"+signSettings)
	}
	state, err := p.o.State(ctx, p.point)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(p.scratch.Dir(), "config.session")
	if err := os.WriteFile(file, state.Files["config"].Content, 0o600); err != nil {
		return nil, err
	}
	return p.settingsIn(ctx, file, nameSettings)
}

// settingsIn returns the arguments of git for those settings in a configuration file whose names match the regular
// expression names.
func (p *promotion) settingsIn(ctx context.Context, file, names string) (args []string, err error) {
	out, err := p.git().Output(ctx, "", "config", "--file", file, "--no-includes", "-z", "--get-regexp", names)
	if err != nil && !gitcmd.Exited(err, 1) { // 1: there are none
		return nil, err
	}
	for setting := range strings.SplitSeq(string(out), "\x00") {
		if name, value, ok := strings.Cut(setting, "\n"); ok {
			args = append(args, "-c", name+"="+value)
		}
	}
	return args, nil
}

// message returns the message of the new commit: that of the request, or one that lists the given commits.
func (p *promotion) message(commits []owned) string {
	if p.r.Message != "" {
		return strings.TrimRight(p.r.Message, "\n") + "\n"
	}
	if p.reply.Method == control.PromoteMerge {
		return review.MergeMessage(p.o.Name, p.reply.Branch, texts(commits))
	}
	return review.SquashMessage(texts(commits))
}
