/* A small command line for libgit2: clone, commit, push, fetch and show. The tests describe its arguments (suite_test.go). */
#include <git2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char header[512];
static char *headers[] = {header};
static int refused, asked;

static void check(int error, const char *what) {
	if (error >= 0) return;
	const git_error *e = git_error_last();
	fprintf(stderr, "%s: %d: %s\n", what, error, e ? e->message : "");
	exit(1);
}

static const char *env(const char *name) {
	const char *value = getenv(name);
	return value ? value : "";
}

/* libgit2 asks again after a refusal. */
static int credentials(git_credential **out, const char *url, const char *user, unsigned int allowed, void *payload) {
	(void)url, (void)user, (void)allowed, (void)payload;
	if (strcmp(env("AFS_AUTH"), "basic") != 0 || asked++) return GIT_EAUTH;
	return git_credential_userpass_plaintext_new(out, "x", env("AFS_TOKEN"));
}

static int updated(const char *ref, const char *status, void *data) {
	(void)data;
	if (status) {
		fprintf(stderr, "%s: %s\n", ref, status);
		refused = 1;
	}
	return 0;
}

static void authenticate(git_remote_callbacks *callbacks, git_strarray *custom) {
	callbacks->credentials = credentials;
	callbacks->push_update_reference = updated;
	if (strcmp(env("AFS_AUTH"), "bearer") == 0) {
		snprintf(header, sizeof header, "Authorization: Bearer %s", env("AFS_TOKEN"));
		custom->strings = headers;
		custom->count = 1;
	}
}

static void commit(git_repository *repo, const char *name, const char *text) {
	char path[4096], message[512];
	snprintf(path, sizeof path, "%s%s", git_repository_workdir(repo), name);
	FILE *f = fopen(path, "w");
	if (!f || fputs(text, f) < 0 || fclose(f) != 0) {
		perror(path);
		exit(1);
	}
	git_index *index;
	git_oid tree_id, id;
	git_tree *tree;
	git_signature *who;
	git_object *parent;
	check(git_repository_index(&index, repo), "index");
	check(git_index_add_bypath(index, name), "add");
	check(git_index_write(index), "write index");
	check(git_index_write_tree(&tree_id, index), "write tree");
	check(git_tree_lookup(&tree, repo, &tree_id), "tree");
	check(git_signature_now(&who, "foreign", "foreign@localhost"), "signature");
	check(git_revparse_single(&parent, repo, "HEAD"), "HEAD");
	snprintf(message, sizeof message, "change %s\n", name);
	const git_commit *parents[] = {(git_commit *)parent};
	check(git_commit_create(&id, repo, "HEAD", who, who, NULL, message, tree, 1, parents), "commit");
	puts(git_oid_tostr_s(&id));
}

int main(int argc, char **argv) {
	git_libgit2_init();
	if (argc < 3) return 2;
	git_fetch_options fetch = GIT_FETCH_OPTIONS_INIT;
	authenticate(&fetch.callbacks, &fetch.custom_headers);
	git_repository *repo;
	if (strcmp(argv[1], "clone") == 0) {
		git_clone_options o = GIT_CLONE_OPTIONS_INIT;
		o.fetch_opts = fetch;
		check(git_clone(&repo, argv[2], argv[3], &o), "clone");
		return 0;
	}
	check(git_repository_open(&repo, argv[2]), "open");
	if (strcmp(argv[1], "commit") == 0) {
		commit(repo, argv[3], argv[4]);
		return 0;
	}
	if (strcmp(argv[1], "show") == 0) {
		git_object *blob;
		char spec[1024];
		snprintf(spec, sizeof spec, "%s:%s", argv[3], argv[4]);
		check(git_revparse_single(&blob, repo, spec), "show");
		fwrite(git_blob_rawcontent((git_blob *)blob), 1, git_blob_rawsize((git_blob *)blob), stdout);
		return 0;
	}
	git_remote *remote;
	check(git_remote_lookup(&remote, repo, "origin"), "remote");
	if (strcmp(argv[1], "fetch") == 0) {
		git_oid id;
		check(git_remote_fetch(remote, NULL, &fetch, NULL), "fetch");
		check(git_reference_name_to_id(&id, repo, "refs/remotes/origin/main"), "origin/main");
		puts(git_oid_tostr_s(&id));
		return 0;
	}
	char spec[1024], source[512] = "";
	git_push_options push = GIT_PUSH_OPTIONS_INIT;
	authenticate(&push.callbacks, &push.custom_headers);
	if (*argv[3]) snprintf(source, sizeof source, "refs/heads/%s", argv[3]);
	snprintf(spec, sizeof spec, "%s%s:refs/heads/%s", argc > 5 && strcmp(argv[5], "force") == 0 ? "+" : "", source, argv[4]);
	char *specs[] = {spec};
	const git_strarray all = {specs, 1};
	check(git_remote_push(remote, &all, &push), "push");
	return refused;
}
