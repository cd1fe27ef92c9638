package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/running"
)

// adminSetting is the setting that is set when the first admin token is made, so that only one node makes one.
const adminSetting = "admin-created"

// nodeName returns the name of the server of a data directory in leases. It remains the same when the server is started
// again, so the new process can use the leases of a killed one.
func nodeName(dir string) (string, error) {
	path := filepath.Join(dir, "node")
	text, err := os.ReadFile(path)
	if name := strings.TrimSpace(string(text)); err == nil && name != "" {
		return name, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read name of node: %w", err)
	}
	name := records.NewID()
	if err := disk.WriteFile(path, []byte(name+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write name of node: %w", err)
	}
	return name, nil
}

// ensureAdmin makes an admin token at the first start, and makes the token in the file valid if it is not. It returns
// the token if it is new and was not in the file before.
func ensureAdmin(ctx context.Context, db *records.DB, file string) (fresh control.Secret, err error) {
	given, err := running.ReadToken(file)
	if err == nil {
		return "", adopt(ctx, db, given, file)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read admin token %s: %w", file, err)
	}
	if _, err := db.Settings.Get(ctx, adminSetting); err == nil {
		return "", nil // a token was made before, perhaps by another node, so its file was removed or has another path
	} else if !errors.Is(err, records.ErrNotFound) {
		return "", err
	}
	fresh, err = newAdminToken(ctx, db, file)
	if err != nil {
		return "", err
	}
	_, err = db.Settings.SetOnce(ctx, adminSetting, time.Now().UTC().Format(time.RFC3339))
	return fresh, err
}

// newAdminToken makes a token that may do everything, and writes it to a file that only the user of this process can
// read. The file is written first. If a crash prevents that the token is stored in the database, the next start makes
// it valid.
func newAdminToken(ctx context.Context, db *records.DB, file string) (control.Secret, error) {
	t, text := access.Mint(records.Token{Role: records.AdminToken, Label: "admin"}, time.Now())
	if err := disk.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write admin token %s: %w", file, err)
	}
	if err := db.Tokens.Create(ctx, t, nil, records.Cause{Actor: "operator"}); err != nil {
		return "", fmt.Errorf("create admin token: %w", err)
	}
	return control.Secret(text), nil
}

// adopt makes the admin token of a file valid, unless the database has it.
func adopt(ctx context.Context, db *records.DB, text control.Secret, file string) error {
	guard := access.NewGuard(db)
	r := &http.Request{Header: http.Header{"Authorization": {"Bearer " + string(text)}}}
	_, err := guard.Admin(ctx, r, "", records.WriteScope)
	if err == nil || !errors.Is(err, access.ErrInvalid) {
		return err
	}
	t, err := access.Adopt(records.Token{Role: records.AdminToken, Label: "admin"},
		strings.TrimSpace(string(text)), time.Now())
	if err != nil {
		return fmt.Errorf("use admin token %s: %w", file, err)
	}
	err = db.Tokens.Create(ctx, t, nil, records.Cause{Actor: "operator"})
	if errors.Is(err, records.ErrExists) { // the token was revoked or has expired
		return fmt.Errorf("use admin token %s: %w", file, access.ErrInvalid)
	}
	return err
}
