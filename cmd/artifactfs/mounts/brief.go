package mounts

import "github.com/artifactfs/artifactfs/cmd/artifactfs/cli"

// mountBrief is the help that "mount" prints without --all. It lists only the flags that most mounts need, so that it
// fits on one screen.
var mountBrief = cli.Brief{
	Text: `Mount mounts REMOTE at DIR, and returns as soon as the root directory can be read. From then on all files and
directories can be used: a read waits only for the contents that it needs.

REMOTE is any URL or path that git can clone, or a link that artifactfs session link has printed. DIR must be empty; it
is created if it does not exist. The default of DIR is the name of the repository, in the current directory.

Changes in the mount are kept on this host, in a session. Mounting REMOTE at DIR again resumes the session, and
artifactfs unmount --discard deletes it. Tokens are taken from the URL, $ARTIFACTFS_TOKEN, --token-file, or git's
credential helpers. Each flag can be set by an environment variable: --read-only by $ARTIFACTFS_READ_ONLY.`,
	Example: `  artifactfs mount https://github.com/git/git
  artifactfs mount git@example.org:team/app.git /srv/app --ref v2.1
  artifactfs mount https://example.org/app.git fix --session fix-login --session-remote https://example.org/work.git
  artifactfs mount https://example.org/app.git /srv/app --read-only --follow=main
  artifactfs mount --create http://127.0.0.1:8790/team/app app`,
	Flags: []string{"ref", "session", "session-remote", "create", "follow", "read-only", "redirect", "wait", "prefetch",
		"history", "token-file", "foreground"},
}
