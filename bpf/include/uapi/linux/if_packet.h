/* Included by bcc's headers; nothing of it is needed. */
