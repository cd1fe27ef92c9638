package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/server/records"
)

// accountSetting is the key of the setting with the id of the account.
const accountSetting = "account"

// Account returns the id of the server's account. The first start of the server stores id, or a random one if id is "".
// A later start with another id returns an error.
func Account(ctx context.Context, db *records.DB, id string) (string, error) {
	fresh := strings.ToLower(id)
	if fresh == "" {
		var random [16]byte
		rand.Read(random[:]) // crypto/rand never fails
		fresh = hex.EncodeToString(random[:])
	}
	if len(fresh) != 32 || strings.Trim(fresh, "0123456789abcdef") != "" {
		return "", errors.New("set account: id must have 32 hexadecimal digits")
	}
	stored, err := db.Settings.SetOnce(ctx, accountSetting, fresh)
	if err != nil {
		return "", fmt.Errorf("set account: %w", err)
	}
	if id != "" && stored != fresh {
		return "", fmt.Errorf("set account: database belongs to another account, %s", stored)
	}
	return stored, nil
}
