def unpad(m):
    pass
